// One bar for each of the largest storages: when it lives, when it is gone, when it is
// made again.
const lifetimesChart = {
  plot: null, axis: "run", order: "birth", rows: [],
  open() {
    const rows = DATA.lifetimes;
    if (!rows.length) return;
    $("#lifetimes").hidden = false;
    const gaps = rows.filter(r => r.bars.length > 1).length;
    $("#lifetimes-about").textContent = `The ${rows.length} largest storages of the step.`
      + (gaps ? ` ${gaps} of them are freed and made again: the thin line is the gap, the second bar the recomputed copy.` : " None is made twice.");
    this.sort("birth");
    for (const b of $$("[data-order]")) b.addEventListener("click", () => {
      for (const other of $$("[data-order]")) other.setAttribute("aria-pressed", String(other === b));
      this.sort(b.dataset.order); this.plot.redraw();
    });
    this.plot = new Plot($("#lifetimes-chart"), {
      label: `Lifetimes of the ${rows.length} largest storages`, left: 14,
      x: this.axisX("run"), y: { min: 0, max: rows.length },
      draw: (ctx, plot) => this.draw(ctx, plot),
      hover: (px, py) => this.hover(px, py),
      step: way => this.stepRow(way),
    });
    const kinds = [...new Set(rows.map(r => r.kind))];
    $("#lifetimes-legend").replaceChildren(...kinds.map(k => legendItem(`var(--${k})`, kindName(k))),
      ...(gaps ? [legendItem("var(--recomputed)", kindName("recomputed"))] : []));
    tideChart.listeners.push((view, axis, number) => {
      if (number !== 0) return;
      this.plot.options.x = this.axisX(axis);
      this.axis = axis;
      this.plot.view = [...view];
      this.plot.redraw();
    });
  },
  axisX(axis) {
    const tide = DATA.tides[0];
    return axis === "run"
      ? { min: 0, max: tide.num_runs, show: v => grouped(Math.round(v)), name: "runs of ops" }
      : { min: 0, max: tide.seconds, show: shortSeconds, name: "predicted time" };
  },
  sort(order) {
    const module = r => (op(r.op) || { module: "" }).module;
    this.rows = [...DATA.lifetimes];
    if (order === "size") this.rows.sort((a, b) => b.bytes - a.bytes);
    if (order === "module") this.rows.sort((a, b) => module(a).localeCompare(module(b), undefined, { numeric: true }));
  },
  span(bar) { return this.axis === "run" ? [bar.first_run, bar.end_run] : [bar.start_seconds, bar.end_seconds]; },
  draw(ctx, plot) {
    const tall = plot.spanY / this.rows.length, thick = Math.max(1, Math.min(14, tall * 0.78));
    this.rows.forEach((row, i) => {
      const y = plot.area.top + (i + 0.5) * tall;
      if (row.bars.length > 1) {
        ctx.fillStyle = faded(theme.color("soft"), 0.45);
        const a = plot.px(this.span(row.bars[0])[0]), b = plot.px(this.span(row.bars[row.bars.length - 1])[1]);
        ctx.fillRect(a, y - 0.4, b - a, 0.8);
      }
      for (const bar of row.bars) {
        const [a, b] = this.span(bar).map(v => plot.px(v));
        ctx.fillStyle = theme.color(bar.again && row.kind === "activation" ? "recomputed" : row.kind);
        ctx.fillRect(a, y - thick / 2, Math.max(1, b - a), thick);
      }
    });
  },
  hover(px, py) {
    const i = Math.floor((py - this.plot.area.top) / this.plot.spanY * this.rows.length);
    if (px < this.plot.area.left || px > this.plot.area.right || i < 0 || i >= this.rows.length) return null;
    return this.cursor(i, px);
  },
  cursor(i, px) {
    this.at = i;
    const row = this.rows[i], tall = this.plot.spanY / this.rows.length, it = op(row.op);
    const bars = row.bars.map((b, n) => pairLine(null, n ? "made again" : "made", `run ${grouped(b.first_run + 1)} to ${grouped(b.end_run)}`));
    return { px: px ?? this.plot.px(this.span(row.bars[0])[0]), py: this.plot.area.top + (i + 0.5) * tall, size: 3.5,
      tip: [line(el("b", {}, row.name)), line(`${bytes(row.bytes)}, ${kindName(row.kind)}`), it && it.module ? line(it.module) : null,
        it && it.source ? line(it.source, "mono quiet") : null, ...bars] };
  },
  stepRow(way) {
    this.plot.point(this.cursor(Math.min(this.rows.length - 1, Math.max(0, (this.at ?? -1) + way))));
  },
};
