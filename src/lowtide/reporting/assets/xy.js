// Points and lines on two axes: the frontier, batch sizes, the search.
const SHAPES = ["circle", "square", "triangle", "diamond"];
function mark(ctx, shape, x, y, r) {
  ctx.beginPath();
  if (shape === "square") ctx.rect(x - r * 0.88, y - r * 0.88, r * 1.76, r * 1.76);
  else if (shape === "triangle") { ctx.moveTo(x, y - r * 1.15); ctx.lineTo(x + r * 1.08, y + r * 0.8); ctx.lineTo(x - r * 1.08, y + r * 0.8); ctx.closePath(); }
  else if (shape === "diamond") { ctx.moveTo(x, y - r * 1.25); ctx.lineTo(x + r * 1.1, y); ctx.lineTo(x, y + r * 1.25); ctx.lineTo(x - r * 1.1, y); ctx.closePath(); }
  else ctx.arc(x, y, r, 0, 7);
}
function around(values, pad = 0.06) {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low || Math.abs(high) || 1) * pad;
  return [low - room, high + room];
}

// series: [{name, color, shape, line, step, points: [{x, y, tip, label, chosen, hollow}]}]
function xyChart(host, { label, x, y, series, under, pick }) {
  const all = series.flatMap(s => s.points.map(p => ({ ...p, series: s, source: p }))).filter(p => p.y !== null);
  let at = -1;
  const near = (px, py, plot) => {
    let best = -1, least = 26 ** 2;
    all.forEach((p, i) => {
      const d = (plot.px(p.x) - px) ** 2 + (plot.py(p.y) - py) ** 2;
      if (d < least && !p.silent) { least = d; best = i; }
    });
    return best;
  };
  const cursor = i => { at = i; const p = all[i]; return { px: plot.px(p.x), py: plot.py(p.y), size: 6, tip: p.tip }; };
  const plot = new Plot(host, {
    label, x, y, under,
    draw(ctx, plot) {
      for (const s of series) {
        const shown = s.points.filter(p => p.y !== null);
        const color = theme.color(s.color);
        const joined = shown.filter(p => p.joined !== false);
        if (s.line && joined.length > 1) {
          ctx.beginPath();
          joined.forEach((p, i) => {
            if (i && s.step) ctx.lineTo(plot.px(p.x), plot.py(joined[i - 1].y));
            ctx.lineTo(plot.px(p.x), plot.py(p.y));
          });
          ctx.strokeStyle = s.faint ? faded(color, 0.45) : color; ctx.lineWidth = 1.8; ctx.setLineDash(s.dash || []); ctx.stroke(); ctx.setLineDash([]);
        }
        if (s.shape) for (const p of shown) {
          mark(ctx, s.shape, plot.px(p.x), plot.py(p.y), s.size || 4.6);
          if (p.hollow) { ctx.lineWidth = 1.8; ctx.strokeStyle = color; ctx.fillStyle = theme.color("panel"); ctx.fill(); ctx.stroke(); }
          else { ctx.fillStyle = color; ctx.fill(); ctx.lineWidth = 1; ctx.strokeStyle = theme.color("panel"); ctx.stroke(); }
          if (p.source ? p.source.chosen : p.chosen) { mark(ctx, "circle", plot.px(p.x), plot.py(p.y), 9); ctx.strokeStyle = theme.color("ink"); ctx.lineWidth = 1.6; ctx.stroke(); }
        }
      }
    },
    after(ctx, plot) {
      ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`; ctx.textBaseline = "middle";
      for (const p of all) if (p.label) {
        const px = plot.px(p.x), wide = ctx.measureText(p.label).width, left = px + 10 + wide > plot.area.right;
        ctx.fillStyle = theme.color("soft"); ctx.textAlign = left ? "right" : "left";
        ctx.fillText(p.label, px + (left ? -9 : 9), plot.py(p.y));
      }
    },
    hover(px, py) { const i = near(px, py, plot); return i < 0 ? null : cursor(i); },
    click(px, py) { const i = near(px, py, plot); if (i >= 0 && pick) pick(all[i]); },
    step(way) {
      const order = all.map((p, i) => i).filter(i => !all[i].silent).sort((a, b) => all[a].x - all[b].x || all[a].y - all[b].y);
      if (!order.length) return;
      const place = order.indexOf(at);
      plot.point(cursor(order[Math.min(order.length - 1, Math.max(0, place + way))]));
    },
    enter() { if (at >= 0 && pick) pick(all[at]); },
  });
  return plot;
}
