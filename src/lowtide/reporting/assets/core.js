// Shared by all charts: data, words, colors, elements. Text only ever enters the page
// through textContent, so a name that looks like HTML stays a name.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") node.className = value;
    else if (key === "on") for (const [name, run] of Object.entries(value)) node.addEventListener(name, run);
    else if (key === "color") node.style.background = value;
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

// The data is gzipped JSON in base64, to keep the file small.
const packed = Uint8Array.from(atob($("#data").textContent), c => c.charCodeAt(0));
const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const DATA = await new Response(unpacked).json();

// Numbers as the rest of lowtide prints them.
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function bytes(value) {
  const sign = value < 0 ? "-" : "";
  let size = Math.abs(value), power = 0;
  while (size >= (power === 0 ? 1024 : 1023.95) && power < 5) { size /= 1024; power += 1; }
  if (power === 0) return `${sign}${size.toFixed(0)} B`;
  return `${sign}${size.toFixed(size < 99.995 ? 2 : 1)} ${BYTE_UNITS[power]}`;
}
function seconds(value) {
  const sign = value < 0 ? "-" : "", size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size >= 119.5) {
    const whole = Math.round(size), minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${sign}${minutes} min ${whole % 60} s`;
    return `${sign}${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]])
    if (size >= 0.9995 * scale || unit === "ns") {
      const v = size / scale;
      return `${sign}${v.toFixed(v < 9.995 ? 2 : v < 99.95 ? 1 : 0)} ${unit}`;
    }
}
const percent = (fraction, signed) =>
  `${signed && fraction >= 0 ? "+" : ""}${(100 * fraction).toFixed(1)} %`;
const grouped = value => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");

// What the page shows now: one plan's view. A point of the frontier chooses another.
let VIEW = DATA.views[0];
const viewers = [];
const whenShown = draw => { viewers.push(draw); draw(VIEW); };
function showView(number) {
  VIEW = DATA.views[number];
  document.body.dataset.view = number;
  $("#headline").textContent = held(VIEW.headline);
  for (const card of VIEW.cards) {
    const node = $(`#card-${card.id}`);
    if (!node) continue;
    node.dataset.value = card.value;
    if (card.number !== null) node.dataset.number = card.number;
    $(".value", node).title = Number.isInteger(card.number) ? `${grouped(card.number)} bytes` : "";
    for (const part of ["before", "detail"]) $(`.${part}`, node).textContent = held(card[part]);
    $(".now", node).textContent = held(card.value);
  }
  for (const draw of viewers) draw(VIEW);
}
const held = text => text.replace(/(?<=\d) (?=(?:%|[KMGTP]?i?B|[mun]?s|min|h)\b|%)/g, "\u00a0");
const op = number => number < 0 ? null : {
  number, ...Object.fromEntries(Object.entries(DATA.ops).map(([key, column]) => [key, column[number]])),
};
const kindName = kind => (DATA.kinds.find(k => k.kind === kind) || { name: kind }).name;

// Colors live in the style sheet; they are read again when the theme changes.
const theme = {
  cache: {},
  color(name) {
    if (!(name in this.cache))
      this.cache[name] = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    return this.cache[name];
  },
  reset() { this.cache = {}; },
};
const faded = (color, alpha) => {
  const n = parseInt(color.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
};

const tip = {
  node: $("#tip"),
  show(x, y, ...content) {
    this.node.replaceChildren(...content.filter(c => c !== null));
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
    const top = Math.min(Math.max(8, y - box.height / 2), innerHeight - box.height - 8);
    this.node.style.left = `${Math.max(8, left)}px`;
    this.node.style.top = `${top}px`;
  },
  hide() { this.node.hidden = true; },
};
const line = (content, kind) => el("div", { class: kind || "" }, content);
const pairLine = (color, name, value) =>
  el("div", { class: "row" }, color ? el("span", { class: "swatch", color }) : null, el("span", {}, name), el("span", {}, value));

function opLines(number) {
  const it = op(number);
  if (!it) return [];
  return [
    line(el("b", {}, it.title)),
    it.title.startsWith(it.module) ? null : line(it.module),
    line(it.name === it.title ? it.target : it.name, "mono quiet"),
    it.source ? line(it.source, "mono quiet") : null,
  ];
}

function table(headings, rows) {
  const cells = (row, tag) => row.map((cell, i) =>
    el(tag, { class: headings[i].kind || "" }, ...(Array.isArray(cell) ? cell : [cell])));
  return el("table", {},
    el("thead", {}, el("tr", {}, headings.map(h => el("th", { class: h.kind || "", scope: "col" }, h.name)))),
    el("tbody", {}, rows.map(row => el("tr", {}, cells(row, "td")))));
}
const legendItem = (color, name, shape = "") =>
  el("span", {}, el("span", { class: `swatch ${shape}`, style: shape === "dash" ? `border-color:${color}` : `background:${color}` }), name);
