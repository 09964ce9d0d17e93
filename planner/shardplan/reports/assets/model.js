"use strict";
function modelView(report) {
  const { names, mesh } = report, { segments } = report.model;
  const longest = Math.max(...segments.map((segment) => segment.compute + segment.exposed), 1);
  const boxes = segments.map((segment) => segmentBox(report, segment, longest));
  const note = el("span", { class: "soft", role: "status" });
  const input = el("input", { type: "search", placeholder: "find an operator, module or tensor", size: 38, "aria-label": "find in the model", on: { input: () => search(input.value.trim().toLowerCase()) } });
  function search(word) {
    let count = 0, first = null;
    for (const box of boxes) {
      const hits = word ? box.search(word) : 0;
      count += hits;
      if (hits && !first) first = box.node;
    }
    note.textContent = word ? `${count.toLocaleString("en")} found` : "";
    if (first) first.scrollIntoView({ block: "nearest" });
  }
  const all = (open) => () => boxes.forEach((box) => { box.node.open = open; });
  return section("model", "Model",
    el("p", { class: "lead" }, "Operators in program order; copies of a block that are decided alike are one row. A chip says which letter of the operator's equation a mesh axis splits; times are those of forward + backward; ← are operands and → results, with what is sent for them, red where it is exposed."),
    el("div", { class: "tools" }, input, note, el("span", { class: "grow" }),
      mesh.axes.map((axis, number) => el("span", {}, el("i", { class: "dot", style: { background: axisColor(number) } }), axis.name)),
      el("button", { type: "button", on: { click: all(true) } }, "unfold all"), el("button", { type: "button", on: { click: all(false) } }, "fold all")),
    el("div", { class: "columns soft", "aria-hidden": "true" }, el("span", {}, "copies"), el("span", {}, "block"), el("span", {}, "split over"), el("span", {}), el("span", {}, "compute + exposed")),
    boxes.map((box) => box.node));
}
function segmentBox(report, segment, longest) {
  const { names, mesh } = report, share = (value) => `${(100 * value) / longest}%`;
  const said = new Map();
  for (const operator of segment.operators) operator[4].forEach((label, axis) => {
    const split = names[label];
    if (split !== "-" && mesh.axes[axis].size > 1) said.set(`${axis} ${split}`, (said.get(`${axis} ${split}`) || 0) + 1);
  });
  const used = [...new Set([...said.keys()].map((key) => Number(key.split(" ")[0])))].sort();
  const times = el("span", { class: "shares" }, el("span", { class: "bar minibar", "aria-hidden": "true" },
    el("span", { style: { width: share(segment.compute), background: "var(--compute)" } }), el("span", { style: { width: share(segment.exposed), background: "var(--other)" } })));
  const node = el("details", { class: `segment${segment.count > 1 ? " block" : ""}` }, el("summary", {},
    el("span", { class: "times" }, segment.count > 1 ? `${segment.count} ×` : ""),
    named(segment.label),
    el("span", { class: "splits" }, used.map((axis) => el("i", { class: "dot", style: { background: axisColor(axis) }, title: `split over ${mesh.axes[axis].name}` })), el("span", { class: "soft" }, counted(segment.operators.length, "operator"))),
    times,
    el("span", { class: "took soft" }, segment.compute || segment.exposed ? `${duration(segment.compute)} + ${duration(segment.exposed)}` : "no compute")));
  tipped(node.firstChild, `compute ${duration(segment.compute)}, exposed communication ${duration(segment.exposed)}${segment.count > 1 ? `, of all ${segment.count} copies` : ""}`);
  let list = null;
  const fill = () => {
    if (list) return;
    list = el("div", { class: "ops" }, segment.operators.map((operator) => operatorRow(report, operator)));
    node.append(list);
  };
  node.addEventListener("toggle", () => { if (node.open) fill(); });
  // text of every operator with the paths of all copies
  let texts = null;
  const textsOf = () => segment.operators.map((operator, at) => {
    const own = [operator[0], operator[1], operator[2]].map((number) => names[number]);
    const tensors = [...operator[8], ...operator[9]].map((edge) => names[edge[0]]);
    const first = segment.paths[0];
    const others = segment.paths.slice(1).flatMap((path, copy) => [names[segment.names[copy][at]], ...[...own.slice(2), ...tensors].filter((text) => first && text.includes(first)).map((text) => text.replace(first, path))]);
    return [...own, ...tensors, ...others].join("\n").toLowerCase();
  });
  function search(word) {
    texts = texts || textsOf();
    const hits = texts.map((text) => text.includes(word)), count = hits.filter(Boolean).length;
    node.classList.toggle("found", count > 0);
    if (count && count <= 40) { fill(); node.open = true; }
    if (list) [...list.children].forEach((row, at) => row.classList.toggle("found", hits[at]));
    return count;
  }
  return { node, search: (word) => search(word) };
}
function operatorRow(report, operator) {
  const { names, mesh } = report;
  const [name, type, place, equation, split, forward, backward, inner, reads, makes] = operator;
  const chips = split.map((label, axis) => [names[label], axis]).filter(([label, axis]) => mesh.axes[axis].size > 1 && label !== "-")
    .map(([label, axis]) => tipped(el("span", { class: "chip axis", style: { background: axisColor(axis) } }, `${label} @ ${mesh.axes[axis].name}`), `${mesh.axes[axis].name} splits ${label} of ${names[equation]}`));
  const edge = ([tensor, role, kept, used, size, moves], arrow) => el("li", {}, arrow, named(names[tensor]), " ", ["parameter", "rematerialised"].includes(names[role]) ? el("span", { class: "soft" }, `${names[role]} `) : null,
    layoutChips(used >= 0 ? names[used] : "", mesh.axes), size ? el("span", { class: "soft" }, bytes(size)) : null,
    moves.map(([phase, sent, payload, time, exposed]) => el("div", { class: exposed ? "moved" : "moved soft" },
      `${names[phase]}: ${names[sent]}, ${bytes(payload)}, ${duration(time)}, ${exposed === 0 ? "overlapped" : exposed < time ? `${duration(exposed)} exposed` : "all exposed"}`)));
  const full = names[name], kind = names[type], module = names[place], path = module && !full.startsWith(module) ? module : "";
  // what computes and sends nothing (a view) is one line
  if (!forward && !backward && !inner && ![...reads, ...makes].some((one) => one[5].length))
    return el("div", { class: "op" }, el("div", { class: "title soft" }, kind, " ", named(full)), el("div", {}, chips), el("div", { class: "soft" }, "no compute"),
      el("ul", { class: "flow" }, makes.slice(0, 1).map(([, , , made]) => el("li", {}, "→ ", layoutChips(made >= 0 ? names[made] : "", mesh.axes)))));
  return el("div", { class: "op" },
    el("div", { class: "title" }, el("b", {}, kind), " ", named(path || full), path ? el("div", { class: "soft mono" }, full) : null),
    el("div", {}, chips.length ? chips : el("span", { class: "soft" }, "replicated"), el("div", { class: "soft mono" }, names[equation])),
    el("div", {}, duration(forward), backward ? ` + ${duration(backward)}` : "", inner ? el("div", { class: "moved" }, `${duration(inner)} inside`) : null),
    el("ul", { class: "flow" }, reads.map((one) => edge(one, "← ")), makes.map((one) => edge(one, "→ "))));
}
