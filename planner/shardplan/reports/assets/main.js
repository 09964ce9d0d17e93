"use strict";
// A section of a stage: ids belong to the whole page, so it is named by itself
function ofStage(node, number) {
  const title = node.querySelector("h2");
  for (const one of [node, ...node.querySelectorAll("[id]")]) one.removeAttribute("id");
  if (title) {
    node.removeAttribute("aria-labelledby");
    node.setAttribute("aria-label", `Stage ${number}: ${title.textContent}`);
  }
  return node;
}
function planViews(report) {
  return [head(report), report.schedule ? scheduleView(report) : null, modelView(report), parameterTable(report), moveTable(report)];
}
function pipelineViews(report) {
  const room = el("div", { role: "tabpanel" });
  const tabs = report.stages.map((stage, number) => el("button", { type: "button", role: "tab", on: { click: () => open(number) } }, stage.name));
  function open(number) {
    tabs.forEach((tab, at) => tab.setAttribute("aria-selected", String(at === number)));
    room.replaceChildren(...planViews(report.stages[number]).filter(Boolean).map((node) => ofStage(node, number)));
  }
  open(0);
  return [head(report), ganttView(report), section("stages", "Stages", stageTable(report.runs), el("div", { class: "tabs", role: "tablist" }, tabs), room)];
}
const VIEWS = { plan: planViews, pipeline: pipelineViews, diff: diffView, sweep: sweepView, comparison: comparisonView };
function controls() {
  const root = document.documentElement, dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const button = el("button", { type: "button", on: { click: () => { root.dataset.theme = dark() ? "light" : "dark"; say(); dispatchEvent(new Event("themechange")); } } });
  const say = () => { button.textContent = dark() ? "light" : "dark"; button.setAttribute("aria-label", `use the ${button.textContent} theme`); };
  say();
  return button;
}
// On paper everything is dark on light, pictures too
function printing() {
  const root = document.documentElement, redraw = () => dispatchEvent(new Event("themechange"));
  let before = null;
  addEventListener("beforeprint", () => { before = root.dataset.theme ?? ""; root.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; redraw(); });
}
function start() {
  const report = JSON.parse(document.getElementById("document").textContent), content = document.getElementById("content");
  const views = VIEWS[report.kind](report).filter(Boolean);
  if (report.tried) views.splice(1, 0, meshesView(report.tried));
  content.replaceChildren(...views);
  add(document.getElementById("nav"), views.filter((view) => view.id).map((view) => el("a", { href: `#${view.id}` }, view.firstChild.textContent)));
  document.getElementById("controls").append(controls());
  printing();
  document.documentElement.dataset.ready = "yes";
}
start();
