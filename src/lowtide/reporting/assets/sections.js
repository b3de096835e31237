// Tables, and the smaller charts.
const times = n => (n > 1 ? el("span", { class: "times" }, `\u00d7${n}`) : null);
function meter(parts, top) {
  return parts.filter(([, v]) => v > 0).map(([kind, v]) => el("i", { style: `width:${(100 * v / top).toFixed(2)}%;background:var(--${kind})` }));
}

function showPeak({ peak, icicle: tree }) {
  $("#peak").hidden = !(peak && peak.rows.length);
  if ($("#peak").hidden) return;
  icicle.show(tree);
  const it = op(peak.op);
  $("#peak-about").textContent = `What is alive when the peak of ${bytes(peak.bytes)} is reached`
    + (it ? `, while ${it.title} runs${it.source ? ` (${it.source})` : ""}` : "")
    + ". To lower the peak, something in this list must go.";
  const headings = [{ name: "storage", kind: "name" }, { name: "made by", kind: "spare" }, { name: "kind" }, { name: "bytes", kind: "n" }, { name: "share", kind: "n spare" }, { name: "", kind: "meter" }];
  const top = peak.rows[0].bytes;
  const render = count => {
    const rows = peak.rows.slice(0, count).map(r => [
      [el("span", {}, r.label), times(r.num_storages)], r.made_by, r.kind ? kindName(r.kind) : "",
      el("span", { title: `${grouped(r.bytes)} bytes` }, bytes(r.bytes)), percent(r.bytes / (peak.bytes || 1)), meter([[r.kind, r.bytes]], top)]);
    const made = table(headings, rows);
    $$("tbody tr", made).forEach((row, i) => { row.dataset.bytes = peak.rows[i].bytes; });
    const more = peak.rows.length > count
      ? [el("button", { type: "button", class: "more", on: { click: () => render(Infinity) } }, `show all ${peak.rows.length}`)] : [];
    $("#peak-table").replaceChildren(made, ...more);
  };
  render(12);
}

function showModules({ modules: all, recompute_by_op: again }) {
  $("#modules").hidden = !all.length;
  if (!all.length) return;
  const top = Math.max(...all.map(m => m.kept_bytes + m.recomputed_bytes), 1);
  const columns = ["module", "kept", "recomputed", "extra time"];
  const body = el("tbody");
  $("#modules-table").replaceChildren(el("table", {}, el("thead", {}, el("tr", {},
    columns.map((c, i) => el("th", { class: i ? "n" : "name", scope: "col" }, c)), el("th", { class: "meter" }))), body));
  const wordsOf = s => { const it = op(s.op); return [s.name, s.fate, s.dtype, it.title, it.target, it.module, it.source].join(" ").toLowerCase(); };
  const words = m => [m.label.toLowerCase(), ...m.storages.map(wordsOf)].join("\n");
  const inner = (m, query) => {
    const lines = query && !m.label.toLowerCase().includes(query) ? m.storages.filter(s => wordsOf(s).includes(query)) : m.storages;
    const rows = lines.slice(0, 200).map(s => {
      const it = op(s.op);
      return el("tr", { class: "inner" },
        el("td", { class: "name" }, el("span", { class: "mono" }, s.name), ` ${it.module}`, it.source ? el("span", { class: "times mono" }, it.source) : null),
        el("td", { class: "n" }, s.fate === "recomputed" ? "" : bytes(s.bytes)), el("td", { class: "n" }, s.fate === "kept" ? "" : bytes(s.bytes)),
        el("td", { class: "n" }, s.times_made > 1 ? `made ${s.times_made} times` : ""),
        el("td", { class: "meter" }, `${s.shape.join("\u00d7")} ${s.dtype}`));
    });
    if (m.num_storages > m.storages.length) rows.push(el("tr", { class: "inner" }, el("td", { colspan: "5" }, `and ${m.num_storages - m.storages.length} smaller ones`)));
    return rows;
  };
  const render = query => {
    const shown = query ? all.filter(m => words(m).includes(query)) : all;
    const rows = [];
    for (const m of shown.slice(0, 300)) {
      const toggle = el("button", { type: "button", class: "twist", "aria-expanded": "false", on: { click: () => {
        const open = toggle.getAttribute("aria-expanded") === "true";
        toggle.setAttribute("aria-expanded", String(!open));
        if (open) { while (row.nextElementSibling && row.nextElementSibling.classList.contains("inner")) row.nextElementSibling.remove(); }
        else row.after(...inner(m, query));
      } } }, m.label);
      const row = el("tr", { "data-kept": m.kept_bytes, "data-recomputed": m.recomputed_bytes },
        el("td", { class: "name" }, m.num_storages ? toggle : m.label, times(m.num_modules)),
        el("td", { class: "n" }, m.kept_bytes ? bytes(m.kept_bytes) : ""), el("td", { class: "n" }, m.recomputed_bytes ? bytes(m.recomputed_bytes) : ""),
        el("td", { class: "n" }, m.recompute_seconds ? seconds(m.recompute_seconds) : ""),
        el("td", { class: "meter" }, meter([["activation", m.kept_bytes], ["recomputed", m.recomputed_bytes]], top)));
      rows.push(row);
    }
    body.replaceChildren(...rows);
    $("#found").textContent = query ? `${shown.length} of ${all.length} rows` : "";
  };
  const renderFound = () => render($("#find").value.trim().toLowerCase());
  $("#find").oninput = renderFound;
  renderFound();
  $("#recompute").hidden = !again.length;
  if (again.length) {
    const most = again[0].seconds || 1;
    $("#recompute-table").replaceChildren(table([{ name: "op", kind: "name" }, { name: "runs", kind: "n" }, { name: "time", kind: "n" }, { name: "", kind: "meter" }],
      again.slice(0, 12).map(r => [r.op, grouped(r.num_runs), seconds(r.seconds), meter([["recomputed", r.seconds]], most)])));
  }
}

function openBatch() {
  const rows = DATA.batch;
  if (!rows.length) return;
  $("#batch").hidden = false;
  const budget = DATA.batch_budget_bytes;
  const names = [["without a budget", "baseline", "p5", "square", [5, 4]], ["with the budget", "planned", "p0", "circle", []]];
  const make = (host, suffix, show, label, name) => {
    const series = names.map(([words, which, color, shape, dash]) => ({ name: words, color, shape, line: true, dash,
      points: rows.map(r => ({ x: r.batch, y: r[`${which}_${suffix}`] ?? null, tip: [line(el("b", {}, `batch ${r.batch}`)), line(`${words}: ${show(r[`${which}_${suffix}`] ?? 0)}`)] })) }));
    const ys = series.flatMap(s => s.points.map(p => p.y)).filter(v => v !== null);
    if (!ys.length) { $(host).hidden = true; return; }
    const [low, high] = around(rows.map(r => r.batch), 0.05);
    xyChart($(host), { label, series, x: { min: Math.max(0, low), max: high, show: v => String(+v.toFixed(1)), name: "batch size" },
      y: { min: 0, max: Math.max(...ys, suffix === "peak_bytes" ? budget : 0) * 1.1, binary: suffix === "peak_bytes", show: suffix === "peak_bytes" ? shortBytes : v => String(+v.toPrecision(3)), name },
      under: suffix === "peak_bytes" && budget ? (ctx, plot) => {
        const y = plot.py(budget); ctx.strokeStyle = theme.color("warn"); ctx.setLineDash([2, 3]); ctx.lineWidth = 1.3;
        ctx.beginPath(); ctx.moveTo(plot.area.left, y); ctx.lineTo(plot.area.right, y); ctx.stroke(); ctx.setLineDash([]);
        ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
        ctx.fillStyle = theme.color("warn"); ctx.textAlign = "right"; ctx.textBaseline = "bottom"; ctx.fillText(`budget ${bytes(budget)}`, plot.area.right - 4, y - 3);
      } : null });
  };
  make("#batch-peak", "peak_bytes", bytes, "Peak against batch size", "peak");
  make("#batch-speed", "samples_per_second", v => `${+v.toPrecision(4)} samples a second`, "Throughput against batch size", "samples a second");
  $("#batch-legend").replaceChildren(...names.map(([words, , color]) => legendItem(`var(--${color})`, words)));
  const cell = (v, show) => (v === null || v === undefined ? "\u2013" : show(v));
  const speed = v => String(+v.toPrecision(4));
  $("#batch-table").replaceChildren(table([{ name: "batch", kind: "n" }, { name: "baseline peak", kind: "n" }, { name: "planned peak", kind: "n" }, { name: "baseline samples/s", kind: "n" }, { name: "planned samples/s", kind: "n" }],
    rows.map(r => [String(r.batch), cell(r.baseline_peak_bytes, bytes), cell(r.planned_peak_bytes, bytes), cell(r.baseline_samples_per_second, speed), cell(r.planned_samples_per_second, speed)])));
}

function openFidelity() {
  const data = DATA.fidelity;
  if (!data) return;
  $("#fidelity").hidden = false;
  const show = (v, unit) => el("span", { title: unit === "bytes" ? `${grouped(v)} bytes` : `${v} s`, "data-value": v }, unit === "bytes" ? bytes(v) : seconds(v));
  const rows = data.rows.map(r => [`${r.what}, ${r.name}`, show(r.predicted, r.unit), show(r.measured, r.unit), r.predicted === r.measured ? "equal" : percent(r.difference, true)]);
  for (const r of data.rss) rows.push([`seen by the operating system, ${r.name}`, "", show(r.bytes, "bytes"), ""]);
  if (rows.length) $("#fidelity-table").replaceChildren(table([{ name: "", kind: "name" }, { name: "predicted", kind: "n" }, { name: "measured", kind: "n" }, { name: "difference", kind: "n" }], rows));
  $("#fidelity-checks").replaceChildren(...data.checks.map(c => el("li", { class: c.equal ? "yes" : "no" }, c.equal ? `${c.name}: bitwise equal` : `${c.name}: different`)));
}

function showSearch({ search: data }) {
  $("#search").hidden = !data;
  if (!data) return;
  const reasons = { optimal: "it proved its plan to be the best", time_limit: "its time was up", interrupted: "it was interrupted" };
  $("#search-about").textContent = `The best plan found so far, over the time of the search, and the bound below which no plan lies. It ended after ${seconds(data.search_seconds)} because ${reasons[data.stopped_by] || `of: ${data.stopped_by}`}.`;
  const points = data.incumbent.map(p => ({ x: p.search_seconds, y: p.overhead, tip: [line(el("b", {}, percent(p.overhead, true))), line(`after ${seconds(p.search_seconds)}`, "quiet")] }));
  points.push({ x: data.search_seconds, y: data.overhead, silent: true });
  const top = Math.max(...points.map(p => p.y), data.bound_overhead, 0.01) * 1.12;
  xyChart($("#search-chart"), { label: "Extra time of the best plan over the search", x: { min: 0, max: data.search_seconds * 1.01 || 1, show: shortSeconds, name: "time of the search" },
    y: { min: Math.min(0, data.bound_overhead), max: top, show: v => `${+(100 * v).toFixed(1)} %`, name: "extra time" },
    series: [{ name: "best plan", color: "p0", shape: "circle", size: 3.2, line: true, step: true, points }],
    under(ctx, plot) { ctx.fillStyle = theme.color("shade"); const y = plot.py(data.bound_overhead); ctx.fillRect(plot.area.left, y, plot.spanX, plot.area.bottom - y); } });
}

function openDiff() {
  const data = DATA.diff;
  if (!data) return;
  $("#diff").hidden = false;
  const heads = ["", ...data.names, "change"].map((name, i) => ({ name, kind: i ? "n" : "name" }));
  $("#diff-summary").replaceChildren(table(heads, data.rows.map(r => [r.name, r.first, r.second, r.change])));
  $("#diff-parts").replaceChildren(...data.parts.flatMap(part => [el("h3", {}, part.title), el("div", { class: "scroll" },
    table(part.headings.map((name, i) => ({ name, kind: i ? "n" : "name" })), part.rows.slice(0, 60)))]));
}
