// The page: sections in order, contents, theme, downloads, printing.
// Without a choice of the reader's, the style sheet follows the system by itself.
const system = matchMedia("(prefers-color-scheme: dark)");
const stored = {
  get() { try { return localStorage.getItem("lowtide-theme"); } catch { return null; } },
  set(v) { try { localStorage.setItem("lowtide-theme", v); } catch { /* not allowed here: the choice lasts for this page */ } },
};
const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
function setTheme(name) {
  if (name === "dark" || name === "light") document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  $("#theme").textContent = isDark() ? "light" : "dark";
  redrawAll();
}
$("#theme").addEventListener("click", () => { const next = isDark() ? "light" : "dark"; stored.set(next); setTheme(next); });
system.addEventListener("change", () => setTheme(stored.get()));
setTheme(stored.get());

let before = null;
addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; setTheme("light"); });
addEventListener("afterprint", () => setTheme(before));

function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
function timelineCsv() {
  const tide = tideChart.tide, kinds = Object.keys(tide.kinds);
  const quote = v => (/[",\n\r]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v);
  const rows = tide.run.map((run, i) => { const it = op(tide.op[i]);
    return [run, tide.start[i], it.name, it.target, it.module, it.source, tide.again[i] ? 1 : 0, tide.live[i], ...kinds.map(k => tide.kinds[k][i])].map(v => quote(String(v))).join(","); });
  return [["run", "start_seconds", "op", "target", "module", "source", "again", "live_bytes", ...kinds.map(k => `${k}_bytes`)].join(","), ...rows].join("\n") + "\n";
}
// The data as `Report.to_dict` has it, with plain columns.
function plainData() {
  const { texts, ...rest } = DATA;
  const curve = ({ label, peak_bytes, run, start, live }) => ({ label, peak_bytes, run, start_seconds: start, live_bytes: live });
  const words = column => column.map(text);
  return { ...rest,
    ops: { ...DATA.ops, target: words(DATA.ops.target), module: words(DATA.ops.module), source: words(DATA.ops.source) },
    tides: DATA.tides.map((_, n) => { const { number, start, kinds, live, peakAt, outline, again, ...tide } = openTide(n);
      return { ...tide, start_seconds: start, by_kind: kinds, live_bytes: live, again: again.map(Number), outline: outline ? curve(outline) : null }; }),
    measured: DATA.measured ? curve(openCurve(DATA.measured)) : null };
}
$("#save-json").addEventListener("click", () => download("lowtide-report.json", "application/json", JSON.stringify(plainData(), null, 1)));
$("#save-csv").addEventListener("click", () => { if (tideChart.tide) download("lowtide-tide.csv", "text/csv", timelineCsv()); });
for (const button of $$("[data-copy]")) button.addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(button.previousElementSibling.textContent); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(button.previousElementSibling); }
});

const only = document.body.dataset.only ? document.body.dataset.only.split(" ") : null;
const wanted = name => !only || only.includes(name);
const parts = { diff: openDiff, tide: () => tideChart.open(), frontier: () => frontierChart.open(), peak: openPeak, modules: openModules,
  lifetimes: () => lifetimesChart.open(), batch: openBatch, fidelity: openFidelity, search: openSearch };
for (const [name, open] of Object.entries(parts)) if (wanted(name)) open();
if (only) $("#notes").hidden = true;
const shown = $$("main section.panel").filter(s => !s.hidden);
if (!only) $("#contents").replaceChildren(...shown.map(s => el("a", { href: `#${s.id}` }, $("h2", s).textContent)));
document.documentElement.dataset.ready = String(Math.round(performance.now()));
