"use strict";
const MEMORY_COLORS = [0, 1, 2, 3, 4].map((number) => `var(--memory-${number})`);
function costs(report) {
  return report.unit ? (value) => `${value.toLocaleString("en")} ${report.unit}` : duration;
}
const partColor = (name, axis) => (axis >= 0 ? axisColor(axis) : name === "compute" ? "var(--compute)" : name === "bubble" ? "var(--bubble)" : "var(--other)");
// `whole`: what the full width of the bar stands for, where two plans are compared
function stepCard(report, whole = 0) {
  const { step, proof, parts, overlapped } = report.summary, format = costs(report);
  const width = Math.max(whole, step, parts.reduce((sum, [, value]) => sum + value, 0)) || 1;
  return el("div", { class: "card" }, el("h3", {}, "Step"),
    el("div", { class: "big" }, format(step)), el("div", { class: "soft" }, proof),
    bar(parts.map(([name, value, axis]) => [name, value, partColor(name, axis)]), width, format, "step"),
    overlapped ? el("p", { class: "soft" }, "overlapped communication ", el("span", { class: "whole" }, format(overlapped))) : null);
}
// `most`: what the full width stands for, where two plans are compared, else the limit
function memoryCard(summary, most = 0) {
  const whole = most || Math.max(summary.limit, summary.held) || 1, free = summary.limit - summary.held;
  return el("div", { class: "card" }, el("h3", {}, "Memory of a device"),
    el("div", { class: "big" }, bytes(summary.held)), el("div", { class: "soft" }, summary.limit ? `${percent(summary.held / summary.limit)} of ${bytes(summary.limit)}${free < 0 ? ": does not fit" : ""}` : ""),
    bar(summary.memory.map(([name, value], number) => [name, value, MEMORY_COLORS[number]]), whole, bytes, "memory"));
}
const MOST_MACHINES = 4, MOST_DEVICES = 8;
// Machines below the link that joins them, each with its devices below its own link
function meshPicture({ axes, machine, devices }) {
  const per = machine || devices, machines = machine ? Math.max(1, Math.round(devices / machine)) : 1;
  const boxes = Math.min(machines, MOST_MACHINES), cells = Math.min(per, MOST_DEVICES), size = 13, gap = 3;
  const width = cells * (size + gap) + gap + (per > cells ? 12 : 0), inner = axes.length - 1, above = machines > 1 ? 22 : 4, group = [];
  const whole = boxes * (width + 10) + (machines > boxes ? 18 : 0);
  if (machines > 1) group.push(svg("line", { x1: 4, x2: whole - 10, y1: 8, y2: 8, stroke: "var(--axis-0)", "stroke-width": 3 }));
  for (let at = 0; at < boxes; at += 1) {
    const left = at * (width + 10), middle = left + width / 2;
    if (machines > 1) group.push(svg("line", { x1: middle, x2: middle, y1: 8, y2: above, stroke: "var(--axis-0)", "stroke-width": 1.5 }));
    group.push(svg("rect", { x: left, y: above, width, height: size + 18, rx: 5, fill: "var(--faint)", stroke: "var(--line)" }));
    if (per > 1) group.push(svg("line", { x1: left + gap, x2: left + width - gap, y1: above + 6, y2: above + 6, stroke: `var(--axis-${inner % 6})`, "stroke-width": 2.5 }));
    for (let cell = 0; cell < cells; cell += 1) {
      const x = left + gap + cell * (size + gap);
      if (per > 1) group.push(svg("line", { x1: x + size / 2, x2: x + size / 2, y1: above + 6, y2: above + 12, stroke: `var(--axis-${inner % 6})` }));
      group.push(svg("rect", { x, y: above + 12, width: size, height: size, rx: 3, fill: "var(--compute)" }));
    }
    if (per > cells) group.push(svg("text", { x: left + width - 12, y: above + 22 }, "…"));
  }
  if (machines > boxes) group.push(svg("text", { x: whole - 14, y: above + 20 }, "…"));
  const height = above + size + 20;
  return svg("svg", { viewBox: `0 0 ${Math.max(whole, 1)} ${height}`, width: Math.min(whole, 520), role: "img", "aria-label": `${counted(machines, "machine")} of ${counted(per, "device")}`, style: "max-width:100%" }, group);
}
function meshCard(report) {
  const { axes, machine, devices, device } = report.mesh, machines = machine ? Math.max(1, Math.round(devices / machine)) : 0;
  return el("div", { class: "card" }, el("h3", {}, "Mesh"),
    el("div", { class: "big" }, axes.map((axis) => axis.size).join(" × ") || "1"),
    el("div", { class: "soft" }, unbroken(`${counted(devices, "device")}${device ? `, ${device}` : ""}${machines ? `, ${counted(machines, "machine")} of ${machine}` : ""}`, / /)),
    el("div", { class: "meshbox" }, meshPicture(report.mesh)),
    el("div", { class: "links" }, axes.map((axis, number) => el("div", {},
      el("span", { class: "chip axis", style: { background: axisColor(number) } }, `${axis.name} = ${axis.size}`),
      " ", unbroken(`over ${axis.link}${axis.rate ? `, ${digits(axis.rate / 1e9)} GB/s a link` : ""}${axis.shared ? `, ${digits(axis.shared[1] / 1e9)} per device when all ${axis.shared[0]} send` : ""}`),
      axis.size > 1 && axis.does.length ? el("div", { class: "soft" }, axis.does.filter(([, share]) => share >= 0.005).map(([name, share], at, all) => [at ? " " : "", el("span", { class: "whole" }, `${name} ${percent(share)}${at < all.length - 1 ? "," : ""}`)])) : null))));
}
function head(report) {
  return section("summary", "Summary",
    el("p", { class: "lead" }, report.line, "."),
    el("dl", { class: "facts" }, report.facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))),
    el("div", { class: "grid" }, stepCard(report), memoryCard(report.summary), meshCard(report)),
    report.warnings.map((text) => el("p", { class: "warning" }, text)));
}
// What is known of a row without solving again, and the command that prices its alternatives
function why(report, name, lines) {
  const asked = name.replace(/\{[^}]*\}/g, "*");
  return el("div", { class: "why" }, lines.map((line) => el("div", {}, line)),
    el("div", { class: "soft" }, "This command prices the alternatives: ", el("code", {}, `shardplan explain ${report.file ? quoted(report.file) : "PLAN"} ${quoted(asked)} --model ${report.source ? quoted(report.source) : "MODEL"}`)));
}
// What else there was, each with all the rest solved again
function alternatives(report, rows) {
  if (!rows.length) return null;
  const costs = (value, format) => (value === null ? "" : value === 0 ? "same" : `${value > 0 ? "+" : ""}${format(value)}`);
  return el("table", {}, el("thead", {}, el("tr", {}, ["alternative", "step", "memory", "what else changes"].map((text, at) => el("th", { scope: "col", class: at === 1 || at === 2 ? "number" : "" }, text)))),
    el("tbody", {}, rows.map(([choice, time, size, also, not]) => el("tr", {}, el("td", {}, layoutChips(choice, report.mesh.axes)), el("td", { class: "number" }, costs(time, duration)), el("td", { class: "number" }, costs(size, bytes)), el("td", {}, not || also.join("; "))))));
}
function parameterTable(report) {
  if (!report.parameters.length) return section("parameters", "Parameters", el("div", { class: "card" }, "The model has no parameters."));
  const [NAME, COUNT, SHAPE, TYPE, LAYOUT, RECIPE, SIZE, WHY] = [0, 1, 2, 3, 4, 5, 6, 7], whole = report.parameters.reduce((sum, row) => sum + row[SIZE], 0) || 1;
  const columns = [
    { label: "parameter", value: (row) => row[NAME], node: (row) => named(row[NAME]), name: true },
    { label: "copies", value: (row) => row[COUNT], number: true },
    { label: "shape", value: (row) => row[SHAPE].reduce((a, b) => a * b, 1), text: (row) => `${row[SHAPE].join(" × ")} ${row[TYPE]}`, node: (row) => [el("span", { class: "whole" }, row[SHAPE].join(" × ")), ` ${row[TYPE]}`] },
    { label: "layout", value: (row) => row[LAYOUT], node: (row) => layoutChips(row[LAYOUT], report.mesh.axes) },
    { label: "recipe", value: (row) => row[RECIPE], node: (row) => unbroken(row[RECIPE], / /) },
    { label: "bytes per device", value: (row) => row[SIZE], text: (row) => bytes(row[SIZE]), number: true },
    { label: "why", value: () => 0, text: () => "", plain: true },
  ];
  const details = (row, line) => unfolding("why", line, columns.length, () => {
    const moved = report.moves.filter((move) => move[0] === row[NAME]);
    return why(report, row[NAME], [
      `Kept as ${row[LAYOUT]}: ${bytes(row[SIZE])} per device, ${percent(row[SIZE] / whole)} of all parameters.`,
      ...moved.map((move) => `Moved ${move[2] === 1 ? "once" : `${move[2]} times`} a step, ${move[6]}: ${move[3]}, ${duration(move[9])}, of which ${duration(move[10])} exposed.`),
      ...(moved.length ? [] : ["It is not moved by itself."]),
      alternatives(report, row[WHY]),
    ]);
  });
  return section("parameters", "Parameters", el("div", { class: "card" }, sortable(report.parameters, columns, { name: "groups of parameters", by: SIZE - 1, details })));
}
function moveTable(report) {
  const step = report.summary.step || 1, format = costs(report);
  if (!report.moves.length) return section("moves", "Moves", el("div", { class: "card" }, "No tensor is moved between devices."));
  const columns = [
    { label: "of step", value: (row) => row[10], text: (row) => percent(row[10] / step), number: true },
    { label: report.unit ? "cost" : "exposed", value: (row) => row[10], text: (row) => format(row[10]), number: true },
    { label: "total", value: (row) => row[9], text: (row) => format(row[9]), number: true },
    { label: "times", value: (row) => row[2], number: true },
    { label: "collectives", value: (row) => row[3], node: (row) => unbroken(row[3]) },
    { label: "bytes each", value: (row) => row[8], text: (row) => bytes(row[8]), number: true },
    { label: "when", value: (row) => row[6], text: (row) => `${row[6]}, ${row[7]}`, node: (row) => unbroken(`${row[6]}, ${row[7]}`, / /) },
    { label: "tensor", value: (row) => row[1], node: (row) => named(row[1]), name: true },
    { label: "from → to", value: (row) => row[4], text: (row) => `${row[4]} ${row[5]}`, node: (row) => [layoutChips(row[4], report.mesh.axes), "→ ", layoutChips(row[5], report.mesh.axes)] },
  ];
  columns.push({ label: "why", value: () => 0, text: () => "", plain: true });
  const details = (row, line) => unfolding("why", line, columns.length, () => {
    return why(report, row[0], [
      `${row[6][0].toUpperCase()}${row[6].slice(1)}, from ${row[4]} to ${row[5]} by ${row[3]}, ${row[2] === 1 ? "once" : `${row[2]} times`} a step, ${bytes(row[8])} each: the value is kept in one layout and read in another.`,
      `It takes ${format(row[9])}, ${row[10] >= row[9] ? "all exposed" : row[10] ? `${format(row[10])} exposed; the rest runs beside compute` : "overlapped"}.`,
      alternatives(report, row[11]),
    ]);
  });
  return section("moves", "Moves", el("div", { class: "card" }, sortable(report.moves, columns, { name: "kinds of moves", by: 1, details })));
}
