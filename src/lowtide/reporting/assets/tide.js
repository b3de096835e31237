// The tide: live bytes stacked by kind. A column of pixels that covers many runs shows
// the highest of them, so the peak is on the screen at every zoom.
const tideChart = {
  plot: null, tide: null, axis: "run", hidden: new Set(), at: -1, columns: null, listeners: [], found: [],

  open() {
    if (!VIEW.tide) return;
    $("#tide").hidden = false;
    for (const button of $$("[data-axis]")) button.addEventListener("click", () => this.setAxis(button.dataset.axis));
    for (const button of $$("[data-zoom]")) button.addEventListener("click", () => this.zoom(button.dataset.zoom));
    this.listenForWords();
    whenShown(() => this.show());
  },
  xs() { return this.axis === "run" ? this.tide.run : this.tide.start_seconds; },
  end() { return this.axis === "run" ? this.tide.num_runs : this.tide.seconds; },
  show() {
    const raw = VIEW.tide, over = raw.outline;
    this.tide = { ...raw, again: raw.again.map(Boolean), peakAt: raw.run.indexOf(raw.peak_run) };
    this.at = -1;
    $("#tide-about").textContent = (over ? `The dashed line is ${over.label === "baseline" ? "the step with everything kept" : over.label}.` : "")
      + (VIEW.measured ? " The solid line is measured." : "") + " Drag to zoom.";
    this.find($("#tide-find").value);
    this.legend();
    this.build();
  },
  // Type / to find ops by name, module, kind or line; Enter goes from one to the next.
  listenForWords() {
    const box = $("#tide-find");
    addEventListener("keydown", e => {
      if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { box.focus(); box.select(); e.preventDefault(); }
    });
    box.addEventListener("input", () => { this.find(box.value); this.plot.redraw(); });
    box.addEventListener("keydown", e => {
      if (e.key === "Enter") this.next(e.shiftKey ? -1 : 1);
      else if (e.key === "Escape") { box.value = ""; this.find(""); this.plot.point(null); this.plot.redraw(); box.blur(); }
    });
  },
  find(text) {
    const query = text.trim().toLowerCase(), { title, name, target, module, source } = DATA.ops;
    const fits = [...title.keys()].map(i => query && [title[i], name[i], target[i], module[i], source[i]].join(" ").toLowerCase().includes(query));
    this.found = [...this.tide.op.keys()].filter(i => fits[this.tide.op[i]]);
    $("#tide-status").textContent = query ? `${grouped(this.found.length)} runs match${this.found.length ? "; Enter goes to the next" : ""}` : "";
  },
  next(way) {
    const after = way > 0 ? this.found.find(i => i > this.at) : this.found.findLast(i => i < this.at);
    const i = after ?? this.found.at(way > 0 ? 0 : -1);
    if (i === undefined) return;
    this.goTo(i);
    $("#tide-status").textContent = `${grouped(this.found.indexOf(i) + 1)} of ${grouped(this.found.length)}: ${$("#tide-status").textContent}`;
  },
  setAxis(axis) {
    if (axis === this.axis) return;
    const was = this.plot.view.map(v => this.translate(v, axis));
    this.axis = axis;
    for (const b of $$("[data-axis]")) b.setAttribute("aria-pressed", String(b.dataset.axis === axis));
    this.build(was);
  },
  translate(v, axis) {
    const from = this.axis === "run" ? this.tide.run : this.tide.start_seconds, to = axis === "run" ? this.tide.run : this.tide.start_seconds;
    if (v >= this.end()) return Infinity;
    return to[Math.max(0, upper(from, v) - 1)];
  },
  zoom(how) {
    if (how === "in") this.plot.zoom(0.5);
    else if (how === "out") this.plot.zoom(2);
    else if (how === "all") this.plot.reset();
    else {
      const at = this.xs()[this.tide.peakAt], span = Math.max(this.end() * 0.06, this.axis === "run" ? 24 : 0);
      this.plot.setView(at - span / 2, at + span / 2);
    }
  },
  build(view) {
    const tide = this.tide, end = this.end() || 1, by = this.axis;
    const top = Math.max(tide.peak_bytes, tide.budget_bytes && tide.budget_bytes < 1.6 * tide.peak_bytes ? tide.budget_bytes : 0,
      tide.eager_peak_bytes, tide.outline ? tide.outline.peak_bytes : 0, this.line() ? Math.max(...this.line().live_bytes) : 0) * 1.06 || 1;
    const options = {
      label: `Live bytes over the step, peak ${bytes(tide.peak_bytes)}. Arrow keys move along the runs, plus and minus zoom.`,
      x: { min: 0, max: end, zoom: true, least: by === "run" ? Math.min(8, end) : end / 4000,
        show: by === "run" ? v => grouped(Math.round(v)) : shortSeconds, name: by === "run" ? "runs of ops" : "predicted time" },
      y: { min: 0, max: top, binary: true, show: shortBytes },
      under: (ctx, plot) => this.under(ctx, plot),
      draw: (ctx, plot) => this.draw(ctx, plot),
      after: (ctx, plot) => this.marks(ctx, plot),
      hover: px => this.hover(px),
      step: (way, far) => this.step(way * (far ? 10 : 1)),
      moved: v => { for (const tell of this.listeners) tell(v, by); },
    };
    if (!this.plot) this.plot = new Plot($("#tide-chart"), options);
    else { this.plot.options = options; this.plot.view = [0, end]; this.plot.cursor = null; tip.hide(); this.plot.redraw(); }
    const [a, b] = view || [0, end];
    this.plot.setView(a, Math.min(b, end));
  },
  line() { return VIEW.measured; },
  under(ctx, plot) {
    const { top, bottom } = plot.area;
    this.tide.bands.forEach((band, i) => {
      const [a, b] = this.axis === "run" ? [band.first_run, band.end_run] : [band.start_seconds, band.end_seconds];
      if (i % 2 === 0) { ctx.fillStyle = theme.color("band"); ctx.fillRect(plot.px(a), top, plot.px(b) - plot.px(a), bottom - top); }
    });
  },
  // For each column of pixels: the sample to show, the highest that falls into it.
  sample(plot) {
    const xs = this.xs(), live = this.tide.live_bytes, count = Math.max(1, Math.round(plot.spanX));
    const found = new Int32Array(count);
    let next = Math.max(0, upper(xs, plot.view[0]) - 1), last = next;
    for (let c = 0; c < count; c++) {
      const until = plot.xAt(plot.area.left + (c + 1) * plot.spanX / count);
      let best = last;
      let fresh = false;
      while (next < xs.length && xs[next] < until) {
        if (!fresh || live[next] > live[best]) best = next;
        fresh = true; last = next; next += 1;
      }
      found[c] = best;
    }
    return found;
  },
  draw(ctx, plot) {
    const { left, bottom } = plot.area, tide = this.tide;
    const columns = (this.columns = this.sample(plot)), step = plot.spanX / columns.length;
    const over = tide.outline;
    if (over) this.curve(ctx, plot, over, { fill: faded(theme.color("soft"), 0.10) });
    const floor = new Float64Array(columns.length);
    for (const { kind } of DATA.kinds) {
      const values = tide.by_kind[kind];
      if (!values || this.hidden.has(kind)) continue;
      ctx.fillStyle = theme.color(kind);
      ctx.beginPath();
      for (let c = 0; c < columns.length; c++) {
        const y = plot.py(floor[c] + values[columns[c]]);
        ctx.lineTo(left + c * step, y); ctx.lineTo(left + (c + 1) * step, y);
      }
      for (let c = columns.length - 1; c >= 0; c--) {
        const y = plot.py(floor[c]) + 0.35;
        ctx.lineTo(left + (c + 1) * step, y); ctx.lineTo(left + c * step, y);
        floor[c] += values[columns[c]];
      }
      ctx.fill();
    }
    ctx.fillStyle = theme.color("recomputed");
    for (let c = 0; c < columns.length; c++)
      if (tide.again[columns[c]]) ctx.fillRect(left + c * step, bottom + 2, step + 0.3, 4);
    if (over) this.curve(ctx, plot, over, { stroke: theme.color("soft"), dash: [5, 4] });
    const measured = this.line();
    if (measured) this.curve(ctx, plot, measured, { stroke: theme.color("ink"), width: 1.5 });
  },
  curve(ctx, plot, curve, { fill, stroke, dash, width }) {
    const xs = this.axis === "run" ? curve.run : curve.start_seconds, live = curve.live_bytes;
    let i = Math.max(0, upper(xs, plot.view[0]) - 1), high = live[i];
    const points = [[plot.px(xs[i]), high]];
    while (i < xs.length && xs[i] <= plot.view[1]) {
      const px = Math.round(plot.px(xs[i]));
      high = live[i];
      while (i + 1 < xs.length && Math.round(plot.px(xs[i + 1])) === px) { i += 1; high = Math.max(high, live[i]); }
      points.push([px, high]);
      i += 1;
    }
    ctx.beginPath();
    let was = points[0][1];
    for (const [px, value] of points) { ctx.lineTo(px, plot.py(was)); ctx.lineTo(px, plot.py(value)); was = value; }
    ctx.lineTo(plot.px(this.end()), plot.py(was));
    if (fill) {
      ctx.lineTo(plot.px(this.end()), plot.area.bottom); ctx.lineTo(points[0][0], plot.area.bottom);
      ctx.fillStyle = fill; ctx.fill();
    } else {
      ctx.setLineDash(dash || []); ctx.strokeStyle = stroke; ctx.lineWidth = width || 1.3; ctx.stroke(); ctx.setLineDash([]);
    }
  },
  marks(ctx, plot) {
    const { left, right, top, bottom } = plot.area, tide = this.tide;
    ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textBaseline = "alphabetic";
    const bands = tide.bands.map(b => [b.phase, plot.px(this.axis === "run" ? b.first_run : b.start_seconds), plot.px(this.axis === "run" ? b.end_run : b.end_seconds)]);
    ctx.fillStyle = theme.color("soft"); ctx.textAlign = "left";
    for (const [name, a, b] of bands) {
      const from = Math.max(a, left);
      if (Math.min(b, right) - from > ctx.measureText(name).width + 12) ctx.fillText(name, from + 6, top - 7);
      if (a > left && a < right) { ctx.strokeStyle = theme.color("line"); ctx.beginPath(); ctx.moveTo(a, top - 16); ctx.lineTo(a, bottom); ctx.stroke(); }
    }
    const taken = [];
    const label = (words, x, y, color, align) => {
      const width = ctx.measureText(words).width, at = align === "right" ? x - width : x;
      const box = [at - 4, y - 12, width + 8, 16];
      if (taken.some(([l, t, w, h]) => box[0] < l + w && l < box[0] + box[2] && box[1] < t + h && t < box[1] + box[3])) return;
      taken.push(box);
      ctx.fillStyle = faded(theme.color("panel"), 0.82); ctx.beginPath(); ctx.roundRect(...box, 4); ctx.fill();
      ctx.fillStyle = color; ctx.textAlign = "left"; ctx.fillText(words, at, y);
    };
    const budget = tide.budget_bytes, base = tide.outline, eager = tide.eager_peak_bytes;
    const level = (at, color, dash) => {
      const y = Math.round(plot.py(at)) + 0.5;
      ctx.strokeStyle = color; ctx.lineWidth = 1.3; ctx.setLineDash(dash);
      ctx.beginPath(); ctx.moveTo(left, y); ctx.lineTo(right, y); ctx.stroke(); ctx.setLineDash([]);
    };
    if (eager) level(eager, theme.color("p4"), [7, 3]);
    if (budget && budget <= plot.options.y.max) level(budget, theme.color("warn"), [2, 3]);
    ctx.fillStyle = theme.color("accent");
    for (const i of this.found) { const at = plot.px(this.xs()[i]); if (at >= left && at <= right) ctx.fillRect(at - 0.75, top - 5, 2, 5); }
    const x = plot.px(this.xs()[tide.peakAt]), y = plot.py(tide.peak_bytes);
    if (x >= left - 1 && x <= right + 1) {
      const name = `peak ${bytes(tide.peak_bytes)}`, right_side = x + ctx.measureText(name).width + 14 < right;
      label(name, right_side ? x + 9 : x - 9, y - 5, theme.color("ink"), right_side ? "left" : "right");
      ctx.beginPath(); ctx.arc(Math.min(Math.max(x, left + 2), right - 2), y, 4, 0, 7);
      ctx.fillStyle = theme.color("warn"); ctx.fill(); ctx.lineWidth = 1.5; ctx.strokeStyle = theme.color("panel"); ctx.stroke();
    }
    if (budget && budget <= plot.options.y.max) label(`budget ${bytes(budget)}`, left + 8, plot.py(budget) - 5, theme.color("warn"), "left");
    if (eager) label(`eager ${bytes(eager)}`, left + 8, plot.py(eager) - 5, theme.color("p4"), "left");
    if (base) {
      const highest = base.live_bytes.indexOf(base.peak_bytes), at = plot.px((this.axis === "run" ? base.run : base.start_seconds)[highest]);
      const words = `${base.label} ${bytes(base.peak_bytes)}`, onRight = at + ctx.measureText(words).width + 14 < right;
      if (at >= left && at <= right) label(words, onRight ? at + 9 : at - 9, plot.py(base.peak_bytes) + 9, theme.color("soft"), onRight ? "left" : "right");
    }
  },
  hover(px) {
    const { left, right } = this.plot.area;
    if (px < left || px > right) return null;
    const c = Math.min(this.columns.length - 1, Math.max(0, Math.floor((px - left) / this.plot.spanX * this.columns.length)));
    return this.cursor(this.columns[c], px);
  },
  cursor(i, px) {
    const tide = this.tide, plot = this.plot;
    this.at = i;
    const rows = DATA.kinds.filter(k => tide.by_kind[k.kind] && tide.by_kind[k.kind][i]).reverse()
      .map(k => pairLine(`var(--${k.kind})`, k.name, bytes(tide.by_kind[k.kind][i])));
    const what = `run ${grouped(tide.run[i] + 1)} of ${grouped(tide.num_runs)}` + (tide.again[i] ? ", again" : "");
    const base = this.baseline(i), saved = base - tide.live_bytes[i];
    if (base) rows.push(pairLine("var(--soft)", tide.outline.label, bytes(base)),
      line(saved >= 0 ? `${bytes(saved)} less, ${percent(saved / base)}` : `${bytes(-saved)} more`, "quiet"));
    return { px: px ?? plot.px(this.xs()[i]), py: plot.py(tide.live_bytes[i]), line: true,
      tip: [...opLines(tide.op[i]), line(`${what} \u00b7 ${bytes(tide.live_bytes[i])} alive`, "quiet"), ...rows] };
  },
  // What the other schedule holds beside a sample of this one; 0 if there is none.
  baseline(i) {
    const over = this.tide.outline;
    if (!over) return 0;
    const at = upper(over.run, this.tide.run[i]) - 1;
    return at < 0 ? 0 : over.live_bytes[at];
  },
  step(by) {
    const xs = this.xs(), last = xs.length - 1;
    this.goTo(this.at < 0 ? Math.min(last, upper(xs, this.plot.view[0])) : Math.min(last, Math.max(0, this.at + by)));
  },
  goTo(i) {
    const xs = this.xs(), [a, b] = this.plot.view;
    if (xs[i] < a || xs[i] > b) this.plot.setView(xs[i] - (b - a) / 2, xs[i] + (b - a) / 2);
    this.plot.point(this.cursor(i));
    const it = op(this.tide.op[i]);
    $("#tide-status").textContent = `run ${this.tide.run[i] + 1}: ${it.title}, ${bytes(this.tide.live_bytes[i])} alive`;
  },
  legend() {
    const items = DATA.kinds.filter(k => this.tide.by_kind[k.kind]).map(({ kind, name }) => {
      const button = el("button", { type: "button", "aria-pressed": String(!this.hidden.has(kind)), title: "Show or hide", on: { click: () => {
        if (!this.hidden.delete(kind)) this.hidden.add(kind);
        button.setAttribute("aria-pressed", String(!this.hidden.has(kind)));
        this.plot.redraw();
      } } }, el("span", { class: "swatch", color: `var(--${kind})` }), name);
      return button;
    });
    if (this.tide.outline) items.push(legendItem("var(--soft)", this.tide.outline.label, "dash"));
    if (this.tide.eager_peak_bytes) items.push(legendItem("var(--p4)", "eager's peak", "dash"));
    if (this.line()) items.push(legendItem("var(--ink)", "measured", "bar"));
    if (this.tide.again.some(Boolean)) items.push(legendItem("var(--recomputed)", "below the axis: ops run again", "bar"));
    $("#tide-legend").replaceChildren(...items);
  },
};

// The place of the first value above v in a rising list.
function upper(list, v) {
  let low = 0, high = list.length;
  while (low < high) { const mid = (low + high) >> 1; if (list[mid] <= v) low = mid + 1; else high = mid; }
  return low;
}
