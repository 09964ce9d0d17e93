"use strict";
// columns: [{label, value(row), text(row), node(row), number}]; rows are drawn `step` at a time
function sortable(rows, columns, { by = null, step = 20, name = "rows", details = null, narrow = false } = {}) {
  let key = by, down = true, shown = step, word = "";
  const body = el("tbody"), heads = columns.map((column, number) => el("th", { scope: "col", class: column.number ? "number" : column.plain ? "action" : "" }, column.plain ? column.label :
    el("button", { type: "button", on: { click: () => { down = key === number ? !down : Boolean(column.number); key = number; draw(); } } }, column.label)));
  const note = el("span", { class: "soft" }), more = el("button", { type: "button", on: { click: () => { shown = Infinity; draw(); } } });
  const input = el("input", { type: "search", placeholder: "filter", "aria-label": `filter ${name}`, on: { input: () => { word = input.value.toLowerCase(); draw(); } } });
  const written = (row, column) => (column.text ? column.text(row) : column.value(row));
  function draw() {
    let found = word ? rows.filter((row) => columns.some((column) => String(written(row, column)).toLowerCase().includes(word))) : [...rows];
    if (key !== null) {
      const value = columns[key].value, sign = down ? -1 : 1;
      found = found.map((row, at) => [row, at]).sort(([a, i], [b, j]) => {
        const x = value(a), y = value(b);
        return (x < y ? -sign : x > y ? sign : 0) || i - j;
      }).map(([row]) => row);
    }
    heads.forEach((head, number) => { if (number === key) head.setAttribute("aria-sort", down ? "descending" : "ascending"); else head.removeAttribute("aria-sort"); });
    body.replaceChildren(...found.slice(0, shown).flatMap((row) => {
      const line = el("tr", {}, columns.map((column) => el("td", { class: [column.number ? "number" : "", column.name ? "name" : "", column.plain ? "action" : ""].join(" ").trim() }, column.node ? column.node(row) : written(row, column))));
      return [line];
    }));
    if (details) [...body.children].forEach((line, at) => line.lastChild.append(details(found[at], line)));
    note.textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} ${name}${found.length > shown ? `, ${shown} are shown` : ""}`;
    more.hidden = found.length <= shown;
    more.textContent = `show all ${found.length.toLocaleString("en")}`;
  }
  draw();
  return el("div", {}, el("div", { class: "tools" }, input, note, el("span", { class: "grow" }), more),
    el("div", { class: "scroll" }, el("table", { class: narrow ? "narrow" : "" }, el("thead", {}, el("tr", {}, heads)), body)));
}
// A button that unfolds one row below `line`
function unfolding(label, line, columns, make) {
  let opened = null;
  const button = el("button", { type: "button", "aria-expanded": "false", on: { click: () => {
    if (opened) { opened.remove(); opened = null; } else {
      opened = el("tr", {}, el("td", { colspan: columns }, make()));
      line.after(opened);
    }
    button.setAttribute("aria-expanded", String(Boolean(opened)));
  } } }, label);
  return button;
}
