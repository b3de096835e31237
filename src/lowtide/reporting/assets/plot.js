// A chart area: two canvases (what is drawn, and what follows the pointer), axes, zoom,
// keyboard. Charts give it ranges and a function that draws.
const plots = [];

function niceStep(span, count, binary) {
  const rough = span / Math.max(1, count);
  if (binary) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, rough)) / Math.log(1024)));
    for (const many of [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024]) if (many * unit >= rough) return many * unit;
  }
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  for (const m of [1, 2, 5, 10]) if (m * power >= rough) return m * power;
}
function ticks(low, high, count, binary) {
  const step = niceStep(high - low, count, binary), found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}
const shortBytes = v => bytes(v).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ");
const shortSeconds = v => seconds(v).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ");

class Plot {
  // options: label, x {min, max, show, name, zoom, binary}, y likewise, draw(ctx, plot),
  // hover(px, py) -> {x, y, tip} or null, click(px, py), keys {name: run}, step(direction)
  constructor(host, options) {
    Object.assign(this, { host, options, cursor: null, brush: null });
    this.view = [options.x.min, options.x.max];
    this.base = el("canvas", { "aria-hidden": "true" });
    this.over = el("canvas", { tabindex: "0", role: "img", "aria-label": options.label });
    const old = plots.findIndex(plot => plot.host === host);
    if (old >= 0) plots.splice(old, 1)[0].observer.disconnect();
    host.replaceChildren(this.base, this.over);
    this.listen();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    plots.push(this);
    this.resize();
  }
  resize() {
    const box = this.host.getBoundingClientRect();
    if (!box.width || !box.height) return;
    this.width = box.width; this.height = box.height;
    const scale = Math.min(3, window.devicePixelRatio || 1);
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(box.width * scale); canvas.height = Math.round(box.height * scale);
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    const narrow = box.width < 520;
    this.area = { left: this.options.left ?? (narrow ? 56 : 68), right: box.width - (narrow ? 8 : 14), top: 22, bottom: box.height - 38 };
    this.redraw();
  }
  get spanX() { return this.area.right - this.area.left; }
  get spanY() { return this.area.bottom - this.area.top; }
  share(v, low, high) { return (v - low) / ((high - low) || 1); }
  px(v) { return this.area.left + this.spanX * this.share(v, this.view[0], this.view[1]); }
  py(v) { return this.area.bottom - this.spanY * this.share(v, this.options.y.min, this.options.y.max); }
  xAt(px) {
    const part = (px - this.area.left) / this.spanX, [a, b] = this.view;
    return a + part * (b - a);
  }
  redraw() {
    if (!this.area) return;
    const ctx = this.base.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.height);
    ctx.save(); ctx.beginPath();
    ctx.rect(this.area.left, 0, this.spanX, this.area.bottom); ctx.clip();
    if (this.options.under) this.options.under(ctx, this);
    ctx.restore();
    this.axes(ctx);
    ctx.save(); ctx.beginPath();
    ctx.rect(this.area.left, 0, this.spanX, this.area.bottom + 7); ctx.clip();
    this.options.draw(ctx, this);
    ctx.restore();
    if (this.options.after) this.options.after(ctx, this);
    this.host.dataset.drawn = "yes";
    this.follow();
  }
  axes(ctx) {
    const { x, y } = this.options, { left, right, top, bottom } = this.area;
    ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
    ctx.lineWidth = 1;
    ctx.fillStyle = theme.color("soft");
    ctx.textBaseline = "middle"; ctx.textAlign = "right";
    if (y.show) for (const v of ticks(y.min, y.max, this.spanY / 56, y.binary)) {
      const at = Math.round(this.py(v)) + 0.5;
      ctx.strokeStyle = theme.color("line");
      ctx.beginPath(); ctx.moveTo(left, at); ctx.lineTo(right, at); ctx.stroke();
      ctx.fillText(y.show(v), left - 8, at);
    }
    ctx.textBaseline = "top"; ctx.textAlign = "center";
    let last = -1e9;
    for (const v of ticks(this.view[0], this.view[1], this.spanX / (x.binary ? 76 : 96), x.binary)) {
      const at = this.px(v), label = x.show(v), half = ctx.measureText(label).width / 2;
      if (at - half < last + 8) continue;
      const place = Math.min(Math.max(at, left + half - 20), right - half);
      ctx.fillText(label, place, bottom + 9);
      last = place + half;
    }
    if (x.name) { ctx.textAlign = "right"; ctx.fillText(x.name, right, bottom + 24); }
    if (y.name) { ctx.textAlign = "left"; ctx.fillText(y.name, 4, 3); }
  }
  follow() {
    const ctx = this.over.getContext("2d"), { left, right, top, bottom } = this.area;
    ctx.clearRect(0, 0, this.width, this.height);
    if (this.brush) {
      const [a, b] = this.brush.map(v => Math.min(Math.max(v, left), right));
      ctx.fillStyle = faded(theme.color("accent"), 0.14);
      ctx.fillRect(Math.min(a, b), top, Math.abs(b - a), bottom - top);
    }
    if (!this.cursor) return;
    ctx.strokeStyle = faded(theme.color("ink"), 0.55); ctx.lineWidth = 1;
    if (this.cursor.line) {
      const at = Math.round(this.cursor.px) + 0.5;
      ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, bottom); ctx.stroke();
    }
    if (this.cursor.py !== undefined) {
      ctx.beginPath(); ctx.arc(this.cursor.px, this.cursor.py, this.cursor.size || 4, 0, 7);
      ctx.fillStyle = theme.color("panel"); ctx.fill();
      ctx.strokeStyle = theme.color("ink"); ctx.lineWidth = 1.6; ctx.stroke();
    }
  }
  point(cursor, silent) {
    this.cursor = cursor;
    this.follow();
    if (!cursor) { tip.hide(); return; }
    const box = this.host.getBoundingClientRect();
    if (cursor.tip && !silent)
      tip.show(box.left + cursor.px, box.top + (cursor.py ?? (this.area.top + this.area.bottom) / 2), ...cursor.tip);
  }
  setView(low, high) {
    const { min, max } = this.options.x, least = this.options.x.least ?? (max - min) / 2000;
    let span = Math.min(max - min, Math.max(high - low, least));
    const from = Math.min(Math.max(low, min), max - span);
    this.view = [from, from + span];
    if (this.options.moved) this.options.moved(this.view);
    this.redraw();
  }
  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [a, b] = this.view;
    this.setView(at - (at - a) * factor, at + (b - at) * factor);
  }
  reset() { this.setView(this.options.x.min, this.options.x.max); }
  listen() {
    const over = this.over, zooms = this.options.x.zoom, inside = e => {
      const box = this.host.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    let down = null;
    over.addEventListener("pointerdown", e => {
      if (e.button) return;
      down = inside(e);
      if (zooms && e.pointerType !== "touch") over.setPointerCapture(e.pointerId);
    });
    over.addEventListener("pointermove", e => {
      const [px, py] = inside(e);
      if (down && zooms && e.pointerType !== "touch" && Math.abs(px - down[0]) > 4) {
        this.brush = [down[0], px]; this.point(null); return;
      }
      this.point(this.options.hover ? this.options.hover(px, py) : null);
    });
    over.addEventListener("pointerup", e => {
      const [px, py] = inside(e);
      if (this.brush) {
        const [a, b] = this.brush.map(v => this.xAt(v));
        this.brush = null;
        this.setView(Math.min(a, b), Math.max(a, b));
      } else if (down && this.options.click) this.options.click(px, py);
      down = null;
    });
    over.addEventListener("pointercancel", () => { down = this.brush = null; this.follow(); });
    over.addEventListener("pointerleave", () => { if (!this.brush) this.point(null); });
    over.addEventListener("blur", () => this.point(null));
    if (zooms) {
      over.addEventListener("dblclick", () => this.reset());
      over.addEventListener("wheel", e => {
        if (!e.ctrlKey && !e.metaKey && Math.abs(e.deltaX) <= Math.abs(e.deltaY)) return;
        e.preventDefault();
        const [a, b] = this.view;
        if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(e.deltaY * 0.004), this.xAt(inside(e)[0]));
        else this.setView(a + (b - a) * e.deltaX / this.spanX, b + (b - a) * e.deltaX / this.spanX);
      }, { passive: false });
    }
    over.addEventListener("keydown", e => {
      const [a, b] = this.view, move = (b - a) * 0.2;
      const keys = {
        ArrowLeft: () => this.options.step && this.options.step(-1, e.shiftKey),
        ArrowRight: () => this.options.step && this.options.step(1, e.shiftKey),
        Enter: () => this.options.enter && this.options.enter(),
        Escape: () => { if (zooms) this.reset(); this.point(null); },
        ...(zooms ? { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.reset(),
          PageUp: () => this.setView(a - move, b - move), PageDown: () => this.setView(a + move, b + move) } : {}),
      };
      if (e.key in keys) { keys[e.key](); e.preventDefault(); }
    });
  }
}
function redrawAll() { theme.reset(); for (const plot of plots) plot.redraw(); }
