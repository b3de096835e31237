// The frontier: what each planner pays in time for each peak, and what is proven.
const frontierChart = {
  plot: null, series: [],
  open() {
    const data = DATA.frontier;
    if (!data) return;
    $("#frontier").hidden = false;
    const planners = [...new Set(data.points.map(p => p.planner))];
    this.series = planners.map((planner, n) => ({
      name: planner, color: `p${n % 8}`, shape: SHAPES[n % 4], line: true, faint: true,
      points: data.points.filter(p => p.planner === planner).sort((a, b) => a.peak_bytes - b.peak_bytes || a.overhead - b.overhead).map(p => ({
        x: p.peak_bytes, y: p.overhead, view: p.view, chosen: p.is_shown, joined: p.is_best,
        tip: [line(el("b", {}, planner)), line(`peak ${bytes(p.peak_bytes)}, budget ${bytes(p.budget_bytes)}`),
          line(`${percent(p.overhead, true)} time, ${seconds(p.seconds)}`),
          p.view >= 0 ? line("click to show this plan", "quiet") : null],
      })),
    }));
    if (data.references.length)
      this.series.push({ name: "other methods", color: "soft", shape: "diamond", points: data.references.map(r => ({
        x: r.peak_bytes, y: r.overhead, hollow: true, view: -1, label: r.name,
        tip: [line(el("b", {}, r.name)), line(`peak ${bytes(r.peak_bytes)}`), line(`${percent(r.overhead, true)} time`)] })) });
    const xs = this.series.flatMap(s => s.points.map(p => p.x)), ys = this.series.flatMap(s => s.points.map(p => p.y));
    const [low, high] = around([...xs, data.eager_peak_bytes, ...data.bound_bytes ? [data.bound_bytes] : []]);
    const top = Math.max(0.02, ...ys) * 1.1;
    this.plot = xyChart($("#frontier-chart"), {
      label: "Extra time against peak for every plan. Arrow keys move between plans, Enter shows one.",
      x: { min: Math.max(0, low), max: high, binary: true, show: shortBytes, name: "peak" },
      y: { min: Math.min(0, ...ys) - top * 0.04, max: top, show: v => `${+(100 * v).toFixed(1)} %`, name: "extra time" },
      series: this.series, under: (ctx, plot) => this.bound(ctx, plot), pick: p => this.pick(p.view),
    });
    this.legend(data);
    this.table(data);
  },
  bound(ctx, plot) {
    const { top, bottom, left } = plot.area, data = DATA.frontier;
    ctx.fillStyle = theme.color("shade");
    ctx.beginPath();
    data.bound.forEach((corner, i) => {
      const next = data.bound[i + 1], x = plot.px(corner.budget_bytes), until = next ? plot.px(next.budget_bytes) : left;
      ctx.rect(until, plot.py(corner.overhead), x - until, bottom - plot.py(corner.overhead));
    });
    if (data.bound_bytes > plot.view[0]) ctx.rect(left, top, plot.px(data.bound_bytes) - left, bottom - top);
    ctx.fill();
    const x = Math.round(plot.px(data.eager_peak_bytes)) + 0.5, words = `eager ${bytes(data.eager_peak_bytes)}`;
    ctx.strokeStyle = theme.color("p4"); ctx.lineWidth = 1.3; ctx.setLineDash([7, 3]);
    ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, bottom); ctx.stroke(); ctx.setLineDash([]);
    ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    ctx.fillStyle = theme.color("p4"); ctx.textAlign = "right"; ctx.textBaseline = "top"; ctx.fillText(words, x - 6, top);
  },
  pick(number) {
    if (number < 0) return;
    showView(number);
    for (const s of this.series) for (const p of s.points) p.chosen = p.view === number;
    this.plot.redraw();
    for (const row of $$("#frontier-table tbody tr")) row.classList.toggle("shown", Number(row.dataset.view) === number);
    const chosen = DATA.frontier.points.find(p => p.view === number);
    $("#chosen").hidden = number === 0;
    if (chosen) $("#chosen").replaceChildren(`shown: ${chosen.planner}, peak ${bytes(chosen.peak_bytes)}, ${percent(chosen.overhead, true)} time`,
      el("button", { type: "button", on: { click: () => this.pick(0) } }, "back"));
  },
  legend(data) {
    const items = this.series.map(s => legendItem(`var(--${s.color})`, s.name));
    if (data.bound.length || data.bound_bytes) items.push(legendItem("var(--shade)", "proven out of reach"));
    $("#frontier-legend").replaceChildren(...items);
  },
  table(data) {
    const headings = [{ name: "planner" }, { name: "budget", kind: "n" }, { name: "peak", kind: "n" }, { name: "extra time", kind: "n" }, { name: "time", kind: "n" }, { name: "" }];
    const rows = data.points.map(p => [p.planner, bytes(p.budget_bytes), bytes(p.peak_bytes), percent(p.overhead, true), seconds(p.seconds),
      p.view >= 0 ? el("button", { type: "button", on: { click: () => this.pick(p.view) } }, "show") : ""]);
    for (const r of data.references) rows.push([r.name, "", bytes(r.peak_bytes), percent(r.overhead, true), "", ""]);
    const made = table(headings, rows);
    $$("tbody tr", made).forEach((row, i) => { row.dataset.view = data.points[i] ? data.points[i].view : -1; });
    $("#frontier-table").replaceChildren(made);
  },
};
