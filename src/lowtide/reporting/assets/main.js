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
  const tide = tideChart.tide, kinds = Object.keys(tide.by_kind);
  const quote = v => (/[",\n\r]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v);
  const rows = tide.run.map((run, i) => { const it = op(tide.op[i]);
    return [run, tide.start_seconds[i], it.name, it.target, it.module, it.source, tide.again[i] ? 1 : 0, tide.live_bytes[i], ...kinds.map(k => tide.by_kind[k][i])].map(v => quote(String(v))).join(","); });
  return [["run", "start_seconds", "op", "target", "module", "source", "again", "live_bytes", ...kinds.map(k => `${k}_bytes`)].join(","), ...rows].join("\n") + "\n";
}
$("#save-json").addEventListener("click", () => download("lowtide-report.json", "application/json", JSON.stringify(DATA, null, 1)));
$("#save-csv").addEventListener("click", () => { if (tideChart.tide) download("lowtide-tide.csv", "text/csv", timelineCsv()); });
for (const button of $$("[data-copy]")) button.addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(button.previousElementSibling.textContent); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(button.previousElementSibling); }
});

const only = document.body.dataset.only ? document.body.dataset.only.split(" ") : null;
const wanted = name => !only || only.includes(name);
const parts = { diff: openDiff, tide: () => tideChart.open(), frontier: () => frontierChart.open(), peak: () => whenShown(showPeak),
  lifetimes: () => lifetimesChart.open(), modules: () => whenShown(showModules), batch: openBatch, fidelity: openFidelity, search: () => whenShown(showSearch) };
// A report on batch sizes begins with them.
if (DATA.is_profile && DATA.batch.length) $("#first").before($("#batch"));
for (const [name, open] of Object.entries(parts)) if (wanted(name)) open();
if (only) $("#notes").hidden = true;
const shown = $$("main section.panel").filter(s => !s.hidden);
if (!only) $("#contents").replaceChildren(...shown.map(s => el("a", { href: `#${s.id}` }, $("h2", s).textContent)));
document.documentElement.dataset.ready = String(Math.round(performance.now()));
