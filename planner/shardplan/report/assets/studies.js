"use strict";
const signed = (value, format) => el("span", { class: value > 0 ? "up" : value < 0 ? "down" : "soft" }, value === 0 ? "same" : `${value > 0 ? "+" : ""}${format(value)}`);
function diffView(report) {
  const sides = report.sides.map((side, number) => el("div", {}, el("h3", {}, number ? "New" : "Old", ": ", el("code", {}, side.file)), el("p", { class: "soft" }, side.line), stepCard({ ...side, unit: "" }), el("div", { style: { height: "10px" } }), memoryCard(side.summary)));
  const effects = [...report.effects.map((row) => [...row, row[0] === "memory" ? bytes : duration]), ...report.held.map((row) => [...row, bytes])];
  return [
    section("summary", "Side by side", el("div", { class: "grid" }, sides), report.causes.length ? el("div", { class: "card", style: { marginTop: "14px" } }, el("h3", {}, "Asked for differently"), el("ul", {}, report.causes.map((text) => el("li", {}, text)))) : null),
    section("effects", "Effects", el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["", "old", "new", "change"].map((text, at) => el("th", { scope: "col", class: at ? "number" : "" }, text)))),
      el("tbody", {}, effects.map(([name, before, after, format]) => el("tr", {}, el("th", { scope: "row" }, name === "communication" ? "exposed communication" : name), el("td", { class: "number" }, format(before)), el("td", { class: "number" }, format(after)), el("td", { class: "number" }, signed(after - before, format)))))))),
    section("changes", "Changed decisions", el("p", { class: "lead" }, `${report.unchanged.toLocaleString("en")} tensors and operators are as they were.`), el("div", { class: "card" }, sortable(report.changes, [
      { label: "", value: (row) => (row[3] ? (row[4] ? "~" : "−") : "+") },
      { label: "what", value: (row) => row[0] },
      { label: "name", value: (row) => row[1], node: (row) => named(row[1]), name: true },
      { label: "copies", value: (row) => row[2], number: true },
      { label: "before", value: (row) => row[3], node: (row) => layoutChips(row[3], report.sides[0].mesh.axes) },
      { label: "after", value: (row) => row[4], node: (row) => layoutChips(row[4], report.sides[1].mesh.axes) },
      { label: "bytes per device", value: (row) => row[5], text: (row) => (row[5] ? bytes(row[5]) : ""), node: (row) => (row[5] ? signed(row[5], bytes) : ""), number: true },
      { label: "time", value: (row) => row[6], text: (row) => (row[6] ? duration(row[6]) : ""), node: (row) => (row[6] ? signed(row[6], duration) : ""), number: true },
    ], { name: "changes" }))),
  ];
}
const sizes = (mesh) => mesh.split(/,| x /).map((part) => part.split("=").pop()).join("x");
const asked = (point) => [sizes(point.mesh), point.microbatches > 1 ? `${point.microbatches} microbatches` : "", point.remat !== "none" ? point.remat : "", point.stages ? `stages ${point.stages}` : ""].filter(Boolean).join(", ");
// Memory over time, both logarithmic; the front is joined and labelled
function pareto(points) {
  const width = 900, height = 420, pad = { left: 84, right: 40, top: 20, bottom: 40 };
  const scale = (values, from, to) => {
    const low = Math.log(Math.min(...values) || 1) - 0.06, high = Math.log(Math.max(...values) || 1) + 0.06;
    return (value) => from + ((Math.log(value || 1) - low) / (high - low)) * (to - from);
  };
  const x = scale(points.map((one) => one.step), pad.left, width - pad.right), y = scale(points.map((one) => one.memory || 1), height - pad.bottom, pad.top);
  const clusters = [...new Set(points.map((one) => one.cluster))].sort(), front = points.filter((one) => one.best).sort((a, b) => a.step - b.step);
  const marks = points.map((one) => {
    const group = svg("g", { tabindex: one.best ? 0 : -1 }, svg("title", {}, `${one.cluster} ${asked(one)}: ${duration(one.step)}, ${bytes(one.memory)}, ${one.devices} devices`),
      svg("circle", { cx: x(one.step), cy: y(one.memory), r: one.best ? 6 : 4, fill: one.best ? axisColor(clusters.indexOf(one.cluster)) : "none", stroke: axisColor(clusters.indexOf(one.cluster)), "stroke-width": 1.6 }));
    return tipped(group, `${one.cluster}, ${asked(one)}\n${duration(one.step)}, ${bytes(one.memory)} per device, ${one.devices} devices${one.tokens ? `\n${Math.round(one.tokens).toLocaleString("en")} tokens/s` : ""}`);
  });
  let last = -Infinity;
  const labels = front.filter((one) => { const at = y(one.memory); const free = Math.abs(at - last) > 13; if (free) last = at; return free; })
    .map((one) => svg("text", x(one.step) > 0.7 * width ? { x: x(one.step) - 9, y: y(one.memory) + 4, class: "strong", "text-anchor": "end" } : { x: x(one.step) + 9, y: y(one.memory) + 4, class: "strong" }, `${clusters.length > 1 ? `${one.cluster} ` : ""}${asked(one)}`));
  const ends = (values, format) => [Math.min(...values), Math.max(...values)].map(format);
  const [quick, slow] = ends(points.map((one) => one.step), duration), [little, much] = ends(points.map((one) => one.memory), bytes);
  const lines = svg("g", { stroke: "var(--line)" }, svg("line", { x1: pad.left - 6, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }), svg("line", { x1: pad.left - 6, x2: pad.left - 6, y1: pad.top, y2: height - pad.bottom }));
  return el("div", {}, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "memory per device over step; the table below has the same points", width: "100%" }, lines, marks, labels,
    svg("text", { x: pad.left, y: height - 14 }, quick), svg("text", { x: width - pad.right - 40, y: height - 14 }, slow), svg("text", { x: (width - pad.right) / 2, y: height - 14, class: "strong" }, "step"),
    svg("text", { x: 4, y: height - pad.bottom }, little), svg("text", { x: 4, y: pad.top + 8 }, much), svg("text", { x: 4, y: (height - pad.bottom) / 2, class: "strong" }, "memory")),
  el("ul", { class: "legend" }, clusters.map((name, number) => el("li", {}, el("i", { style: { background: axisColor(number) } }), name)), el("li", { class: "soft" }, "filled: no other plan is as good in step, memory and devices")));
}
function sweepView(report) {
  const points = [...report.points].sort((a, b) => b.best - a.best || a.step - b.step), priced = points.some((one) => one.cost !== null && one.cost !== undefined);
  return [
    points.length ? section("chart", "Memory over time", el("div", { class: "card" }, pareto(points))) : null,
    section("points", "Plans", el("div", { class: "card" }, sortable(points, [
      { label: "cluster", value: (one) => one.cluster }, { label: "mesh", value: (one) => one.mesh }, { label: "microbatches", value: (one) => one.microbatches, number: true },
      { label: "rematerialisation", value: (one) => one.remat }, { label: "stages", value: (one) => one.stages }, { label: "devices", value: (one) => one.devices, number: true },
      { label: "step", value: (one) => one.step, text: (one) => duration(one.step), number: true }, { label: "memory", value: (one) => one.memory, text: (one) => bytes(one.memory), number: true },
      { label: "tokens/s", value: (one) => one.tokens || 0, text: (one) => Math.round(one.tokens || 0).toLocaleString("en"), number: true },
      ...(priced ? [{ label: "USD per step", value: (one) => one.cost || 0, text: (one) => (one.cost === null ? "" : one.cost.toFixed(4)), number: true }] : []),
      { label: "best", value: (one) => Number(one.best), text: (one) => (one.best ? "Pareto" : "") },
    ], { name: "plans" }))),
    report.failed.length ? section("failed", "Without a plan", el("div", { class: "card" }, sortable(report.failed, [{ label: "asked for", value: (row) => row[0] }, { label: "reason", value: (row) => row[1] }], { name: "requests" }))) : null,
  ];
}
function comparisonView(report) {
  const plans = report.plans.filter((one) => one.summary), longest = Math.max(...plans.map((one) => one.summary.step), 1);
  const row = (one) => {
    if (!one.summary) return el("tr", {}, el("th", { scope: "row" }, one.name), el("td", { colspan: 4, class: "soft" }, one.why));
    const { step, parts, held } = one.summary;
    return el("tr", {}, el("th", { scope: "row" }, one.name, one.fits ? "" : el("span", { class: "up" }, " does not fit")), el("td", { class: "number" }, duration(step)),
      el("td", { style: { width: "50%" } }, el("div", { class: "bar", style: { width: `${(100 * step) / longest}%` } }, parts.map(([name, value, axis]) => tipped(el("span", { style: { width: `${(100 * value) / (step || 1)}%`, background: partColor(name, axis) } }), `${name}: ${duration(value)}`)))),
      el("td", { class: "number" }, bytes(held)), el("td", {}, one.best ? el("b", {}, "best") : ""));
  };
  return [section("plans", "Plans side by side", el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["plan", "step", "", "memory", ""].map((text, at) => el("th", { scope: "col", class: at === 1 || at === 3 ? "number" : "" }, text)))), el("tbody", {}, report.plans.map(row))), el("ul", { class: "legend" }, [...new Map(plans.flatMap((one) => one.summary.parts).map(([name, , axis]) => [name, partColor(name, axis)]))].map(([name, color]) => el("li", {}, el("i", { style: { background: color } }), name))), el("p", { class: "soft" }, `A device may use ${bytes(report.limit)}.`)))];
}
function meshesView(tried) {
  return section("meshes", "Meshes that were tried", el("div", { class: "card" }, sortable(tried, [
    { label: "mesh", value: (row) => row[0] }, { label: "step", value: (row) => row[1] ?? Infinity, text: (row) => (row[1] === null ? "–" : duration(row[1])), number: true }, { label: "", value: (row) => row[2] },
  ], { name: "meshes" })));
}
