"use strict";
// Everything that files named is written as text, never as HTML.
const SVG = "http://www.w3.org/2000/svg";
function add(node, kids) {
  for (const kid of kids.flat(9)) {
    if (kid !== null && kid !== undefined && kid !== false) node.append(kid instanceof Node ? kid : String(kid));
  }
  return node;
}
function el(tag, attributes, ...kids) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "class") node.className = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  return add(node, kids);
}
function svg(tag, attributes, ...kids) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  return add(node, kids);
}
// Amounts as shardplan/units.py writes them, digit by digit: what lies in the middle is rounded to an even digit
function fixed(value, decimals) {
  const halves = value * 2 * 10 ** decimals, middle = Number.isInteger(value * 2 ** (decimals + 1)) && halves % 4 === 1;
  return (middle ? (halves - 1) / 2 / 10 ** decimals : value).toFixed(decimals);
}
function digits(value) {
  if (value > 0 && value < 0.0005) return "<0.001";
  const decimals = value > 0 && value < 999.5 ? Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(value)))) : 0, text = fixed(value, decimals);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return decimals ? text : Number(text).toLocaleString("en");
}
const counted = (count, noun, plural = "s") => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : plural}`;
function duration(ns) {
  const size = Math.abs(ns), sign = ns < 0 ? "−" : "";
  if (size === 0) return "0 ns";
  for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) if (size >= 0.9995 * unit) return `${sign}${digits(size / unit)} ${name}`;
  return `${sign}${digits(size)} ns`;
}
function bytes(count) {
  const size = Math.abs(count), sign = count < 0 ? "−" : "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (power < units.length - 1 && size / 1024 ** power >= 1023.5) power += 1;
  return `${sign}${digits(size / 1024 ** power)} ${units[power]}`;
}
const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1 %" : `${fixed(100 * share, 1)} %`);
const axisColor = (number) => (number < 0 ? "var(--compute)" : `var(--axis-${number % 6})`);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18)}px`;
}
const hideTip = () => { tip.hidden = true; };
function tipped(node, text) {
  node.addEventListener("mousemove", (event) => showTip(text, event.clientX, event.clientY));
  node.addEventListener("mouseleave", hideTip);
  return node;
}
// parts: [[label, value, color]]; whole: what the full width stands for
function bar(parts, whole, format, label) {
  const said = parts.filter(([, value]) => value > 0);
  const cells = said.map(([name, value, color]) => tipped(
    el("span", { style: { width: `${(100 * value) / whole}%`, background: color } }), `${name}: ${format(value)}, ${percent(value / whole)}`));
  const list = el("ul", { class: "legend" }, said.map(([name, value, color]) =>
    el("li", {}, el("i", { style: { background: color } }), `${name} `, el("b", {}, format(value)))));
  return el("div", {}, el("div", { class: "bar", role: "img", "aria-label": `${label}: ${said.map(([name, value]) => `${name} ${format(value)}`).join(", ")}` }, cells), list);
}
// One colour, or several side by side
const striped = (colors) => (colors.length < 2 ? colors[0] : `linear-gradient(90deg, ${colors.map((color, at) => `${color} ${(100 * at) / colors.length}% ${(100 * (at + 1)) / colors.length}%`).join(", ")})`);
// "S(0)@machine, R/P@gpu": a chip for each placement, in the colours of its axes
function layoutChips(text, axes) {
  if (!text) return [el("span", { class: "soft" }, "–")];
  return text.split(/, (?=[SRP])/).map((piece) => {
    const names = piece.includes("@") ? piece.slice(piece.lastIndexOf("@") + 1).split(",") : [];
    const colors = names.map((name) => axes.findIndex((axis) => axis.name === name)).filter((number) => number >= 0).map(axisColor);
    const text = pieces(piece, /(?<=,)/);
    return colors.length ? el("span", { class: "chip axis", style: { background: striped(colors) } }, text) : el("span", { class: "chip" }, text);
  });
}
// A text that breaks at `places` only; pieces that no column has room for break anywhere, on paper earlier
function pieces(text, places) {
  const kind = (piece) => (piece.length < 28 ? "whole" : piece.length < 60 ? "whole long" : "");
  return text.split(places).map((piece, at) => [at ? el("wbr") : null, el("span", { class: kind(piece) }, piece)]);
}
// A name, which a narrow column breaks after its dots and nowhere else
const named = (text) => el("code", {}, pieces(text, /(?<=[.:/]\s?)(?=\S)/));
// A text with spaces, that breaks at those of `places` only: by default after commas
const unbroken = (text, places = /(?<=,) /) => text.split(places).map((part, at) => [at ? " " : null, pieces(part, /(?<=[@,])/)]);
function section(id, title, ...kids) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), kids);
}
const quoted = (text) => `'${text.replace(/'/g, "'\\''")}'`;
