// One bar for each of the largest storages: as high as its bytes, when it lives, when it
// is gone, when it is made again.
const FIRST_BARS = 40, LEAST_ROW = 15, MOST_BAR = 34;
const lifetimesChart = {
  plot: null, axis: "run", order: "size", all: false, rows: [], at: -1,
  open() {
    if (!VIEW.lifetimes.length) return;
    $("#lifetimes").hidden = false;
    for (const b of $$("[data-order]")) b.addEventListener("click", () => {
      for (const other of $$("[data-order]")) other.setAttribute("aria-pressed", String(other === b));
      this.order = b.dataset.order; this.show();
    });
    $("#lifetimes-all").addEventListener("click", () => { this.all = !this.all; this.show(); });
    whenShown(() => this.show());
    tideChart.listeners.push((view, axis) => {
      this.axis = axis;
      this.plot.options.x = this.axisX();
      this.plot.view = [...view];
      this.plot.redraw();
    });
  },
  show() {
    const found = VIEW.lifetimes, count = this.all ? found.length : Math.min(FIRST_BARS, found.length);
    this.rows = found.slice(0, count).map(row => ({ ...row }));
    const born = r => r.bars[0].first_run;
    if (this.order === "birth") this.rows.sort((a, b) => born(a) - born(b));
    if (this.order === "module") this.rows.sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
    const gaps = this.rows.filter(r => r.bars.length > 1).length;
    $("#lifetimes-about").textContent = `The ${count} largest storages of the step; a bar is as high as its bytes.`
      + (gaps ? ` ${gaps} of them are freed and made again: the thin line is the gap, the second bar the recomputed copy.` : " None is made twice.");
    $("#lifetimes-all").hidden = found.length <= FIRST_BARS;
    $("#lifetimes-all").textContent = this.all ? `the ${FIRST_BARS} largest` : `all ${found.length}`;
    const most = found[0].bytes, total = this.rows.reduce((sum, r) => sum + r.bytes, 0);
    const scale = Math.min(MOST_BAR / most, 15 * count / total);
    let top = 0;
    for (const row of this.rows) {
      row.thick = Math.max(1.5, row.bytes * scale);
      row.tall = Math.max(LEAST_ROW, row.thick + 3);
      row.y = top + row.tall / 2;
      top += row.tall;
    }
    const host = $("#lifetimes-chart");
    host.style.height = `${top + 60}px`;
    this.at = -1;
    const options = { label: `Lifetimes of the ${count} largest storages`, left: host.clientWidth < 520 ? 104 : 230,
      x: this.axisX(), y: { min: 0, max: 1 }, draw: (ctx, plot) => this.draw(ctx, plot), after: (ctx, plot) => this.names(ctx, plot),
      hover: (px, py) => this.hover(px, py), step: way => this.stepRow(way) };
    if (!this.plot) this.plot = new Plot(host, options);
    else { this.plot.options = options; this.plot.view = [options.x.min, options.x.max]; this.plot.resize(); }
    const kinds = [...new Set(this.rows.map(r => r.kind))];
    $("#lifetimes-legend").replaceChildren(...kinds.map(k => legendItem(`var(--${k})`, kindName(k))),
      ...(gaps ? [legendItem("var(--recomputed)", kindName("recomputed"))] : []));
  },
  axisX() {
    return this.axis === "run"
      ? { min: 0, max: VIEW.tide.num_runs, show: v => grouped(Math.round(v)), name: "runs of ops" }
      : { min: 0, max: VIEW.tide.seconds, show: shortSeconds, name: "predicted time" };
  },
  span(bar) { return this.axis === "run" ? [bar.first_run, bar.end_run] : [bar.start_seconds, bar.end_seconds]; },
  draw(ctx, plot) {
    for (const row of this.rows) {
      const y = plot.area.top + row.y;
      if (row.bars.length > 1) {
        ctx.fillStyle = faded(theme.color("soft"), 0.45);
        const a = plot.px(this.span(row.bars[0])[0]), b = plot.px(this.span(row.bars[row.bars.length - 1])[1]);
        ctx.fillRect(a, y - 0.4, b - a, 0.8);
      }
      for (const bar of row.bars) {
        const [a, b] = this.span(bar).map(v => plot.px(v));
        ctx.fillStyle = theme.color(bar.again && row.kind === "activation" ? "recomputed" : row.kind);
        ctx.fillRect(a, y - row.thick / 2, Math.max(1, b - a), row.thick);
      }
    }
  },
  names(ctx, plot) {
    const room = plot.area.left - 12;
    ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textBaseline = "middle"; ctx.textAlign = "right"; ctx.fillStyle = theme.color("soft");
    for (const row of this.rows) ctx.fillText(cut(ctx, row.name, room), plot.area.left - 8, plot.area.top + row.y);
  },
  hover(px, py) {
    const i = this.rows.findIndex(r => Math.abs(py - this.plot.area.top - r.y) <= r.tall / 2);
    return i < 0 || px > this.plot.area.right ? null : this.cursor(i, Math.max(px, this.plot.area.left));
  },
  cursor(i, px) {
    this.at = i;
    const row = this.rows[i];
    const bars = row.bars.map((b, n) => pairLine(null, n ? "made again" : "made", `run ${grouped(b.first_run + 1)} to ${grouped(b.end_run)}`));
    const own = row.op < 0 ? [line(el("b", {}, row.name))] : opLines(row.op);
    return { px: px ?? this.plot.px(this.span(row.bars[0])[0]), py: this.plot.area.top + row.y, size: 3.5,
      tip: [...own, line(`${bytes(row.bytes)}, ${kindName(row.kind)}`), ...bars] };
  },
  stepRow(way) { this.plot.point(this.cursor(Math.min(this.rows.length - 1, Math.max(0, this.at + way)))); },
};

// The text, or its beginning and end if it is wider than there is room for.
function cut(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let keep = Math.max(3, Math.floor(text.length * room / ctx.measureText(text).width) - 2);
  return `${text.slice(0, Math.ceil(keep / 3))}\u2026${text.slice(text.length - Math.floor(2 * keep / 3))}`;
}
