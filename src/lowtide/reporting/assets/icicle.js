// The peak as boxes within boxes: modules from the top, kinds of storages at the ends.
// A box is as wide as its bytes. Choosing one makes it fill the width.
const icicle = {
  show(root) {
    $("#icicle").hidden = !root;
    if (!root) return;
    this.root = root;
    this.enter([root]);
  },
  enter(path) {
    this.path = path;
    const whole = path[path.length - 1], host = $("#icicle-chart"), boxes = [];
    this.least = 3000 / (host.clientWidth || 1000);
    let deepest = 0;
    const place = (box, above, left, width, depth) => {
      const here = [...above, box];
      boxes.push(this.box(here, left, width, depth));
      deepest = Math.max(deepest, depth);
      let at = left;
      for (const part of box.parts) {
        const wide = width * part.bytes / box.bytes;
        if (wide > 0.25) place(part, here, at, wide, depth + 1);
        at += wide;
      }
    };
    place(whole, path.slice(0, -1), 0, 100, 0);
    host.style.height = `${(deepest + 1) * 27}px`;
    host.replaceChildren(...boxes);
    boxes[0].tabIndex = 0;
    $("#icicle-path").textContent = path.length > 1
      ? `${path.map(b => b.name).join(" \u203a ")}: ${bytes(whole.bytes)}. Choose the top box to go back.`
      : "As wide as its bytes, module within module. Choose a box to look into it.";
  },
  box(path, left, width, depth) {
    const box = path[path.length - 1], share = box.bytes / (this.root.bytes || 1);
    const words = [line(el("b", {}, path.slice(1).map(b => b.name).join(".") || box.name)),
      line(`${bytes(box.bytes)}, ${percent(share)} of the peak`)];
    const node = el("button", { type: "button", class: `box ${box.kind}${width < this.least ? " thin" : ""}`, tabindex: "-1", role: "treeitem",
      "data-bytes": box.bytes, "aria-label": `${box.name}, ${bytes(box.bytes)}`,
      style: `left:${left}%;width:${width}%;top:${27 * depth}px` + (box.kind ? `;background:var(--${box.kind})` : ""),
      on: {
        click: () => {
          this.enter(depth || path.length === 1 ? path : path.slice(0, -1));
          $("#icicle-chart .box").focus();
        },
        keydown: e => this.key(e, node),
        pointermove: e => tip.show(e.clientX, e.clientY, ...words),
        pointerleave: () => tip.hide(),
        focus: () => { const at = node.getBoundingClientRect(); tip.show(at.left + at.width / 2, at.top + 13, ...words); },
        blur: () => tip.hide(),
      } }, el("span", {}, box.name), el("span", { class: "size" }, bytes(box.bytes)));
    return node;
  },
  key(e, node) {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (way) {
      const boxes = $$("#icicle-chart .box");
      (boxes[boxes.indexOf(node) + way] || node).focus();
    } else if (e.key === "Escape") { this.enter([this.root]); $("#icicle-chart .box").focus(); }
    else return;
    e.preventDefault();
  },
};
