"use strict";
const signed = (value, format) => el("span", { class: value > 0 ? "up" : value < 0 ? "down" : "soft" }, value === 0 ? "same" : `${value > 0 ? "+" : ""}${format(value)}`);
function diffView(report) {
  const longest = Math.max(...report.sides.map((side) => side.summary.step)), most = Math.max(...report.sides.map((side) => side.summary.held));
  const sides = report.sides.map((side, number) => el("div", {}, el("h3", {}, number ? "New" : "Old", ": ", el("code", {}, side.file)), el("p", { class: "soft" }, side.line), stepCard({ ...side, unit: "" }, longest), el("div", { style: { height: "10px" } }), memoryCard(side.summary, most)));
  const effects = [...report.effects.map((row) => [...row, row[0] === "memory" ? bytes : duration]), ...report.held.map((row) => [...row, bytes])];
  return [
    section("summary", "Side by side", el("p", { class: "lead" }, "The bars of both plans have one scale."), el("div", { class: "grid" }, sides), report.causes.length ? el("div", { class: "card", style: { marginTop: "14px" } }, el("h3", {}, "Inputs that differ"), el("ul", {}, report.causes.map((text) => el("li", {}, text)))) : null),
    section("effects", "Effects", el("div", { class: "card scroll" }, el("table", { class: "narrow" }, el("thead", {}, el("tr", {}, ["quantity", "old", "new", "change"].map((text, at) => el("th", { scope: "col", class: at ? "number" : "" }, text)))),
      el("tbody", {}, effects.map(([name, before, after, format]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, format(before)), el("td", { class: "number" }, format(after)), el("td", { class: "number" }, signed(after - before, format)))))))),
    section("changes", "Changed decisions", el("p", { class: "lead" }, report.unchanged ? `${counted(report.unchanged, "decision")} of tensors and operators did not change.` : ""), report.changes.length ? el("div", { class: "card" }, sortable(report.changes, [
      { label: "change", value: (row) => (row[3] ? (row[4] ? "changed" : "removed") : "added") },
      { label: "what", value: (row) => row[0] },
      { label: "name", value: (row) => row[1], node: (row) => named(row[1]), name: true },
      { label: "copies", value: (row) => row[2], number: true },
      { label: "before", value: (row) => row[3], node: (row) => layoutChips(row[3], report.sides[0].mesh.axes) },
      { label: "after", value: (row) => row[4], node: (row) => layoutChips(row[4], report.sides[1].mesh.axes) },
      { label: "bytes per device", value: (row) => row[5], text: (row) => (row[5] ? bytes(row[5]) : ""), node: (row) => (row[5] ? signed(row[5], bytes) : ""), number: true },
      { label: "time", value: (row) => row[6], text: (row) => (row[6] ? duration(row[6]) : ""), node: (row) => (row[6] ? signed(row[6], duration) : ""), number: true },
    ], { name: "changes" })) : el("div", { class: "card" }, "No decision changed.")),
  ];
}
const sizes = (mesh) => mesh.split(/,| x /).map((part) => part.split("=").pop()).join("x");
const asked = (point) => [sizes(point.mesh), point.microbatches > 1 ? `${point.microbatches} microbatches` : "", point.remat !== "none" ? point.remat : "", point.stages ? `stages ${point.stages}` : ""].filter(Boolean).join(", ");
// A few round numbers between two, for a logarithmic axis; `binary`: multiples of a power of two, for bytes
function ticks(low, high, binary = false) {
  const found = [];
  if (high < 8 * low) {
    const rough = (high - low) / 6 || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = binary ? 2 ** Math.ceil(Math.log2(rough)) : power * [1, 2, 2.5, 5, 10].find((by) => by * power >= rough);
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  } else if (binary) {
    for (let at = 2 ** Math.ceil(Math.log2(low)); at <= high; at *= high < 100 * low ? 2 : 8) found.push(at);
  } else for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    found.push(...(high < 100 * low ? [1, 2, 5] : [1]).map((by) => by * power).filter((at) => at >= low && at <= high));
  return found;
}
// Points at one place, which have a mark together
function together(points) {
  const places = new Map();
  for (const one of points) {
    const key = `${one.cluster} ${one.step} ${one.memory} ${one.mesh}`;
    places.set(key, [...(places.get(key) || []), one]);
  }
  return [...places.values()];
}
const MOST_LABELLED = 24;
// Memory over step, both logarithmic; what is best is filled, and labelled before others are, of few points all
function pareto(points, items) {
  const width = 900, height = 420, pad = { left: 84, right: 40, top: 24, bottom: 44 };
  const scale = (values, from, to) => {
    const low = Math.log(Math.min(...values) || 1) - 0.06, high = Math.log(Math.max(...values) || 1) + 0.06;
    return (value) => from + ((Math.log(value || 1) - low) / (high - low)) * (to - from);
  };
  const x = scale(points.map((one) => one.step), pad.left, width - pad.right), y = scale(points.map((one) => one.memory || 1), height - pad.bottom, pad.top);
  const clusters = [...new Set(points.map((one) => one.cluster))].sort();
  const words = (many) => [...new Set(many.map(asked))].join(" or ");
  const places = together(points), isBest = (many) => many.some((one) => one.best);
  const marks = places.map((many) => {
    const one = many.find((each) => each.best) || many[0], color = axisColor(clusters.indexOf(one.cluster));
    const group = svg("g", { tabindex: one.best ? 0 : -1, role: "img", "aria-label": `${one.cluster} ${words(many)}: ${duration(one.step)}, ${bytes(one.memory)}, ${counted(one.devices, "device")}` },
      svg("circle", { cx: x(one.step), cy: y(one.memory), r: one.best ? 6 : 4, fill: one.best ? color : "none", stroke: color, "stroke-width": 1.6 }));
    return tipped(group, `${one.cluster}, ${words(many)}\n${duration(one.step)}, ${bytes(one.memory)} per device, ${counted(one.devices, "device")}${one.rate ? `\n${Math.round(one.rate).toLocaleString("en")} ${items}/s` : ""}`);
  });
  const taken = points.map((one) => [x(one.step) - 6, x(one.step) + 6, y(one.memory)]);
  const others = places.length > MOST_LABELLED ? [] : places.filter((many) => !isBest(many));
  const labels = [...places.filter(isBest), ...others].map((many) => {
    const [one] = many, text = `${clusters.length > 1 ? `${one.cluster} ` : ""}${words(many)}`, room = 6.2 * text.length;
    // beside its point, else above or below it, where neither a label nor a point is yet
    for (const [right, down] of [[true, 0], [false, 0], [true, -14], [true, 14], [false, -14], [false, 14]]) {
      const edge = x(one.step) + (right ? 9 : -9) * (down ? 0.4 : 1), box = right ? [edge, edge + room] : [edge - room, edge], middle = y(one.memory) + down;
      if (box[0] < pad.left || box[1] > width || taken.some(([from, to, high]) => Math.abs(high - middle) < 13 && from < box[1] && box[0] < to)) continue;
      taken.push([...box, middle]);
      return svg("text", { x: edge, y: middle + 4, class: isBest(many) ? "strong" : "", "text-anchor": right ? "start" : "end" }, text);
    }
    return null;
  });
  const ends = (values) => [Math.min(...values) || 1, Math.max(...values) || 1];
  const steps = ticks(...ends(points.map((one) => one.step))), sizes = ticks(...ends(points.map((one) => one.memory)), true);
  const lines = svg("g", { stroke: "var(--line)" },
    steps.map((ns) => svg("line", { x1: x(ns), x2: x(ns), y1: pad.top, y2: height - pad.bottom, "stroke-dasharray": "2 4" })),
    sizes.map((size) => svg("line", { x1: pad.left - 6, x2: width - pad.right, y1: y(size), y2: y(size), "stroke-dasharray": "2 4" })),
    svg("line", { x1: pad.left - 6, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }), svg("line", { x1: pad.left - 6, x2: pad.left - 6, y1: pad.top, y2: height - pad.bottom }));
  return el("div", {}, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "memory per device over step; the table below has the same points", width: "100%", class: "wide" }, lines, marks, labels,
    steps.map((ns) => svg("text", { x: x(ns), y: height - pad.bottom + 16, "text-anchor": "middle" }, duration(Math.round(ns)))),
    sizes.map((size) => svg("text", { x: pad.left - 12, y: y(size) + 4, "text-anchor": "end" }, bytes(size))),
    svg("text", { x: (width - pad.right) / 2, y: height - 6, class: "strong" }, "step"), svg("text", { x: 4, y: 12, class: "strong" }, "memory of a device")),
  el("ul", { class: "legend" }, clusters.map((name, number) => el("li", {}, el("i", { style: { background: axisColor(number) } }), name)), el("li", { class: "soft" }, "filled: Pareto-optimal in step, memory, devices")));
}
function sweepView(report) {
  const varies = (key) => new Set(report.points.map((one) => one[key])).size > 1;
  const points = [...report.points].sort((a, b) => b.best - a.best || a.step - b.step), priced = points.some((one) => one.cost !== null && one.cost !== undefined);
  return [
    points.length ? section("chart", "Memory over step", el("div", { class: "card scroll" }, pareto(points, report.items))) : null,
    section("points", "Plans", el("div", { class: "card" }, sortable(points, [
      { label: "cluster", value: (one) => one.cluster }, { label: "mesh", value: (one) => one.mesh }, ...(varies("microbatches") ? [{ label: "microbatches", value: (one) => one.microbatches, number: true }] : []),
      ...(varies("remat") ? [{ label: "rematerialisation", value: (one) => one.remat }] : []), ...(varies("stages") ? [{ label: "stages", value: (one) => one.stages }] : []), { label: "devices", value: (one) => one.devices, number: true },
      { label: "step", value: (one) => one.step, text: (one) => duration(one.step), number: true }, { label: "memory", value: (one) => one.memory, text: (one) => bytes(one.memory), number: true },
      { label: `${report.items}/s`, value: (one) => one.rate || 0, text: (one) => Math.round(one.rate || 0).toLocaleString("en"), number: true },
      ...(priced ? [{ label: "USD per step", value: (one) => one.cost || 0, text: (one) => (one.cost === null ? "" : one.cost.toFixed(4)), number: true }] : []),
      { label: "Pareto-optimal", value: (one) => Number(one.best), text: (one) => (one.best ? "yes" : "") },
    ], { name: "plans" }))),
    report.failed.length ? section("failed", "Without a plan", el("div", { class: "card" }, sortable(report.failed, [{ label: "asked for", value: (row) => row[0] }, { label: "reason", value: (row) => row[1] }], { name: "requests" }))) : null,
  ];
}
function comparisonView(report) {
  const plans = report.plans.filter((one) => one.summary), best = plans.find((one) => one.best), longest = Math.max(...plans.map((one) => one.summary.step), 1);
  const row = (one) => {
    if (!one.summary) return el("tr", {}, el("th", { scope: "row" }, one.name), el("td", { colspan: 4, class: "soft" }, one.why));
    const { step, parts, held } = one.summary;
    return el("tr", {}, el("th", { scope: "row" }, one.name, one.fits ? "" : el("span", { class: "up" }, " does not fit")), el("td", { class: "number" }, duration(step)),
      el("td", { style: { width: "50%" } }, el("div", { class: "bar", style: { width: `${(100 * step) / longest}%` } }, parts.map(([name, value, axis]) => tipped(el("span", { style: { width: `${(100 * value) / (step || 1)}%`, background: partColor(name, axis) } }), `${name}: ${duration(value)}`)))),
      el("td", { class: "number" }, bytes(held)), el("td", { class: "number" }, one === best || !best ? "" : `+${percent(step / best.summary.step - 1)}`));
  };
  return [section("plans", "Plans side by side", el("div", { class: "card scroll" }, el("table", { class: "compared" }, el("thead", {}, el("tr", {}, ["plan", "step", "of which", "memory", "slower than best"].map((text, at) => el("th", { scope: "col", class: at % 2 || at === 4 ? "number" : "" }, text)))), el("tbody", {}, report.plans.map(row))), el("ul", { class: "legend" }, [...new Map(plans.flatMap((one) => one.summary.parts).map(([name, , axis]) => [name, partColor(name, axis)]))].map(([name, color]) => el("li", {}, el("i", { style: { background: color } }), name))), el("p", { class: "soft" }, `A device may use ${bytes(report.limit)}.`)))];
}
function meshesView(tried) {
  return section("meshes", "Meshes that were tried", el("div", { class: "card" }, sortable(tried, [
    { label: "mesh", value: (row) => row[0] }, { label: "step", value: (row) => row[1] ?? Infinity, text: (row) => (row[1] === null ? "–" : duration(row[1])), number: true },
    { label: "lower bound", value: (row) => row[2], text: (row) => (row[2] ? duration(row[2]) : "–"), number: true }, { label: "memory", value: (row) => row[3] ?? 0, text: (row) => (row[3] === null ? "–" : bytes(row[3])), number: true },
    { label: "compared", value: (row) => row[4] },
  ], { name: "meshes", narrow: true })));
}
