"use strict";
const LANE = 34, RULER = 22, LABELS = innerWidth < 700 ? 84 : 150;
const [T_NAME, T_STREAM, T_START, T_LENGTH, T_PHASE, T_BYTES, T_EXPOSED, T_AFTER, T_BEFORE, T_CRITICAL] = [...Array(10).keys()];
// One window of time that the charts below each other share
function timeWindow(length) {
  const view = { from: 0, to: length || 1, length: length || 1, charts: [] };
  view.draw = () => view.charts.forEach((chart) => chart());
  view.zoom = (factor, at) => {
    const width = Math.max(view.length / 1e6, Math.min(view.length, (view.to - view.from) * factor));
    view.from = Math.max(0, Math.min(view.length - width, at - ((at - view.from) / (view.to - view.from)) * width));
    view.to = view.from + width;
    view.draw();
  };
  view.shift = (by) => {
    const width = view.to - view.from;
    view.from = Math.max(0, Math.min(view.length - width, view.from + by));
    view.to = view.from + width;
    view.draw();
  };
  return view;
}
function chart(view, height, label, paint, about) {
  const canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": label });
  canvas.style.height = `${height}px`;
  const draw = () => {
    const width = canvas.clientWidth || 900, ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    const plot = width - LABELS, x = (ns) => LABELS + ((ns - view.from) / (view.to - view.from)) * plot;
    paint(pen, { width, height, x });
  };
  const time = (event) => view.from + Math.max(0, (event.offsetX - LABELS) / (canvas.clientWidth - LABELS)) * (view.to - view.from);
  let grabbed = null;
  canvas.addEventListener("wheel", (event) => { if (event.ctrlKey || event.metaKey || event.shiftKey) { event.preventDefault(); view.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, time(event)); } }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { grabbed = event.offsetX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { grabbed = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (grabbed !== null) {
      view.shift(((grabbed - event.offsetX) / (canvas.clientWidth - LABELS)) * (view.to - view.from));
      grabbed = event.offsetX;
    }
    const text = about(time(event), event.offsetY);
    if (text) showTip(text, event.clientX, event.clientY); else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => view.zoom(0.4, time(event)));
  canvas.addEventListener("keydown", (event) => {
    const width = view.to - view.from, middle = view.from + width / 2;
    const act = { "+": () => view.zoom(0.7, middle), "=": () => view.zoom(0.7, middle), "-": () => view.zoom(1.4, middle), ArrowLeft: () => view.shift(-width / 5), ArrowRight: () => view.shift(width / 5), Home: () => view.shift(-view.length), End: () => view.shift(view.length), 0: () => view.zoom(1e9, 0) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  view.charts.push(draw);
  new ResizeObserver(draw).observe(canvas);
  addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return canvas;
}
function ruler(pen, view, { width, x }) {
  const step = 10 ** Math.floor(Math.log10((view.to - view.from) / 4));
  const tick = [1, 2, 5, 10].map((by) => by * step).find((by) => (view.to - view.from) / by <= 8);
  pen.fillStyle = css("--soft"); pen.strokeStyle = css("--line"); pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  let written = 0;
  for (let at = Math.ceil(view.from / tick) * tick; at <= view.to; at += tick) {
    pen.beginPath(); pen.moveTo(x(at), RULER - 6); pen.lineTo(x(at), 4000); pen.stroke();
    const text = at ? duration(Math.round(at)) : "0", room = pen.measureText(text).width;
    const left = Math.min(x(at) + 3, width - room - 2);
    if (left < written) continue;
    pen.fillText(text, left, 9);
    written = left + room + 6;
  }
}
// Which part of its lane a task is drawn in, [from, to] of 0 to 1: all of it, or a share of it where tasks of a stream run at one time
function shares(tasks) {
  const found = new Map();
  let group = [], rows = [], ends = -Infinity;
  const close = () => { for (const [task, row] of group) found.set(task, [row / rows.length, (row + 1) / rows.length]); };
  for (const task of tasks) {
    const start = task[T_START] + 2; // times are rounded to nanoseconds
    if (start > ends) { close(); group = []; rows = []; }
    const free = rows.findIndex((end) => end < start), row = free < 0 ? rows.length : free;
    rows[row] = task[T_START] + task[T_LENGTH];
    ends = Math.max(ends, rows[row]);
    group.push([task, row]);
  }
  close();
  return found;
}
// As much of a text as there is room for, and `…` where that is not all
function fitting(pen, text, room) {
  let width = pen.measureText(text).width, kept = text;
  while (width > room && kept.length) {
    kept = kept.slice(0, Math.min(kept.length - 1, Math.floor((kept.length * room) / width)));
    width = pen.measureText(`${kept}…`).width;
  }
  return kept === text ? text : kept.length > 2 ? `${kept}…` : "";
}
function lanes(view, schedule, names, axesOf, labels = schedule.streams) {
  const streams = schedule.streams.map(() => []);
  schedule.tasks.forEach((task) => streams[task[T_STREAM]].push(task));
  streams.forEach((tasks) => tasks.sort((a, b) => a[T_START] - b[T_START]));
  const parts = streams.map(shares), thick = LANE - 12;
  const longest = streams.map((tasks) => tasks.reduce((most, task) => Math.max(most, task[T_LENGTH]), 0));
  const first = (lane, from) => {
    let low = 0, high = streams[lane].length;
    while (low < high) { const middle = (low + high) >> 1; if (streams[lane][middle][T_START] < from) low = middle + 1; else high = middle; }
    return low;
  };
  const color = (task) => axesOf(task[T_STREAM], task);
  const unlisted = schedule.unlisted || [], alike = (times) => `${counted(times, "more microbatch", "es")} like the last`;
  const paint = (pen, frame) => {
    ruler(pen, view, frame);
    for (const [times, start, end] of unlisted) {
      const from = Math.max(LABELS, frame.x(start)), to = Math.min(frame.width, frame.x(end)), text = alike(times);
      if (to <= from) continue;
      pen.fillStyle = css("--faint"); pen.fillRect(from, RULER + 4, to - from, streams.length * LANE - 12);
      pen.fillStyle = css("--soft"); pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center";
      const fits = (words) => pen.measureText(words).width < to - from - 8, below = times === 1 ? "microbatch" : "microbatches";
      const lines = fits(text) ? [text] : [`${times} more`, below].filter(fits);
      lines.forEach((line, number) => pen.fillText(line, (from + to) / 2, RULER + (streams.length * LANE) / 2 - 2 + 14 * (number - (lines.length - 1) / 2)));
      pen.textAlign = "start";
    }
    const colors = new Map(), filled = (name) => { if (!colors.has(name)) colors.set(name, name.startsWith("--") ? css(name) : name); return colors.get(name); };
    const critical = css("--bad"), text = css("--text");
    streams.forEach((tasks, lane) => {
      const y = RULER + lane * LANE, texts = [];
      const drawn = new Map();
      for (let at = first(lane, view.from - longest[lane]); at < tasks.length && tasks[at][T_START] <= view.to; at += 1) {
        const task = tasks[at], from = Math.max(LABELS, frame.x(task[T_START])), to = frame.x(task[T_START] + task[T_LENGTH]);
        const [above, below] = parts[lane].get(task), tall = thick * (below - above), top = y + 4 + thick * above;
        if (to < LABELS || (to <= drawn.get(above) && to - from < 0.4)) continue;
        drawn.set(above, to);
        pen.fillStyle = filled(color(task));
        pen.fillRect(from, top, Math.max(0.5, to - from - (to - from > 3 ? 0.6 : 0)), tall - (below < 1 ? 0.6 : 0));
        if (task[T_CRITICAL]) { pen.fillStyle = critical; pen.fillRect(from, y + LANE - 7, Math.max(0.5, to - from), 2.5); }
        const label = names[task[T_NAME]], number = /^(?:forward|backward) (\d+)(?: of piece \d+)?$/.exec(label); // of a microbatch
        if (to - from > (number ? 14 : 60) && tall >= 10) texts.push([number && to - from < 76 ? number[1] : label, from, to, top + tall / 2, tall < 14]);
      }
      pen.fillStyle = filled("--card");
      for (const [label, from, to, middle, small] of texts) {
        pen.font = `${small ? 9 : 11}px system-ui, sans-serif`;
        pen.fillText(fitting(pen, label, Math.min(to, frame.width) - from - 6), from + 4, middle);
      }
      pen.fillStyle = css("--card"); pen.fillRect(0, y, LABELS - 4, LANE);
      pen.fillStyle = text; pen.font = "12px system-ui, sans-serif"; pen.fillText(labels[lane], 0, y + LANE / 2 - 2, LABELS - 10);
    });
  };
  const about = (time, y) => {
    const lane = Math.floor((y - RULER) / LANE);
    if (lane < 0 || lane >= streams.length) return "";
    const slack = (view.to - view.from) / 400;
    const at = Math.max(0, Math.min(0.999, ((y - RULER) % LANE - 4) / thick)), near = streams[lane].filter((one) => one[T_START] - slack <= time && time <= one[T_START] + one[T_LENGTH] + slack);
    const task = near.find((one) => parts[lane].get(one)[0] <= at && at < parts[lane].get(one)[1]) || near[0];
    if (!task) return unlisted.filter(([, start, end]) => start <= time && time <= end).map(([times]) => alike(times)).join();
    const lines = [names[task[T_NAME]], `${duration(task[T_START])} + ${duration(task[T_LENGTH])}${names[task[T_PHASE]] ? `, ${names[task[T_PHASE]]}` : ""}`];
    if (task[T_BYTES]) lines.push(`${bytes(task[T_BYTES])}, ${duration(task[T_EXPOSED])} exposed`);
    if (names[task[T_AFTER]]) lines.push(`issued after ${names[task[T_AFTER]]}`);
    if (names[task[T_BEFORE]]) lines.push(`awaited before ${names[task[T_BEFORE]]}`);
    if (task[T_CRITICAL]) lines.push("on the critical path");
    return lines.join("\n");
  };
  return chart(view, RULER + streams.length * LANE + 4, `schedule: ${schedule.streams.length} streams, ${duration(schedule.length)}; the longest tasks are in the table below`, paint, about);
}
function memoryChart(view, memory, names) {
  const points = memory.points, height = 150, top = Math.max(memory.peak + memory.rest, 1) * 1.06;
  const y = (size) => height - 6 - (size / top) * (height - RULER - 8);
  const paint = (pen, frame) => {
    ruler(pen, view, frame);
    const layers = [["--memory-1", () => memory.state], ["--memory-3", ([, held]) => memory.state + held], ["--memory-4", ([, held, passing]) => memory.state + held + passing]];
    for (const [color, level] of layers.reverse()) {
      pen.fillStyle = css(color); pen.beginPath(); pen.moveTo(LABELS, y(0));
      let before = points.length ? level(points[0]) : 0;
      pen.lineTo(LABELS, y(before));
      for (const point of points) {
        const x = Math.max(LABELS, Math.min(frame.width, frame.x(point[0])));
        pen.lineTo(x, y(before));
        before = level(point);
        pen.lineTo(x, y(before));
      }
      pen.lineTo(Math.max(LABELS, Math.min(frame.width, frame.x(view.length))), y(before));
      pen.lineTo(Math.max(LABELS, Math.min(frame.width, frame.x(view.length))), y(0)); pen.fill();
    }
    pen.strokeStyle = css("--bad"); pen.setLineDash([5, 4]); pen.beginPath(); pen.moveTo(LABELS, y(memory.peak + memory.rest)); pen.lineTo(frame.width, y(memory.peak + memory.rest)); pen.stroke(); pen.setLineDash([]);
    pen.fillStyle = css("--card"); pen.fillRect(0, 0, LABELS - 4, height);
    pen.fillStyle = css("--text"); pen.font = "12px system-ui, sans-serif"; pen.fillText("memory", 0, height / 2 - 8);
    pen.fillStyle = css("--soft"); pen.fillText(`peak ${bytes(memory.peak + memory.rest)}`, 0, height / 2 + 10, LABELS - 10);
  };
  const about = (time) => {
    let found = points[0];
    for (const point of points) { if (point[0] > time) break; found = point; }
    return found ? `${duration(Math.round(time))}: ${bytes(memory.state + found[1] + found[2])}\nparameters, gradients, optimizer ${bytes(memory.state)}\nactivations ${bytes(found[1])}\ngradients of activations ${bytes(found[2])}` : "";
  };
  return chart(view, height, `memory over the step, at most ${bytes(memory.peak + memory.rest)}`, paint, about);
}
function scheduleTools(view) {
  const middle = () => (view.from + view.to) / 2, button = (label, act, name) => el("button", { type: "button", "aria-label": name, on: { click: act } }, label);
  return el("div", { class: "tools" }, button("zoom in", () => view.zoom(0.5, middle())), button("zoom out", () => view.zoom(2, middle())),
    button("◀", () => view.shift((view.from - view.to) / 3), "earlier"), button("▶", () => view.shift((view.to - view.from) / 3), "later"), button("whole step", () => view.zoom(1e9, 0)),
    el("span", { class: "soft hint" }, "Drag to move, double click or Shift + wheel to zoom, arrows and + − on the keyboard."), el("span", { class: "soft" }, "Red: the critical path."));
}
function taskTable(schedule, names) {
  const longest = [...schedule.tasks].sort((a, b) => b[T_LENGTH] - a[T_LENGTH]).slice(0, 1000);
  return el("details", {}, el("summary", {}, "The longest tasks as a table"), sortable(longest, [
    { label: "task", value: (task) => names[task[T_NAME]], node: (task) => named(names[task[T_NAME]]), name: true },
    { label: "stream", value: (task) => schedule.streams[task[T_STREAM]] },
    { label: "start", value: (task) => task[T_START], text: (task) => duration(task[T_START]), number: true },
    { label: "time", value: (task) => task[T_LENGTH], text: (task) => duration(task[T_LENGTH]), number: true },
    { label: "exposed", value: (task) => task[T_EXPOSED], text: (task) => (task[T_BYTES] ? duration(task[T_EXPOSED]) : ""), number: true },
    { label: "bytes", value: (task) => task[T_BYTES], text: (task) => (task[T_BYTES] ? bytes(task[T_BYTES]) : ""), number: true },
    { label: "critical", value: (task) => task[T_CRITICAL], text: (task) => (task[T_CRITICAL] ? "yes" : "") },
  ], { by: 3, step: 25, name: "tasks" }));
}
function scheduleView(report) {
  const { schedule, memory, names } = report, view = timeWindow(schedule.length);
  const links = schedule.streams.map((name) => name.replace("communication: ", ""));
  const colors = links.map((link, lane) => { const axis = report.mesh.axes.findIndex((one) => one.link === link); return lane === 0 ? "--compute" : axis < 0 ? "--other" : `--axis-${axis % 6}`; });
  const over = (link) => report.mesh.axes.filter((axis) => axis.link === link && axis.size > 1).map((axis) => axis.name).join(", ");
  const labels = links.map((link) => (over(link) && LABELS > 100 ? `${link} (${over(link)})` : link));
  const parts = [scheduleTools(view), lanes(view, schedule, names, (lane) => colors[lane], labels)];
  if (memory && memory.points.length) {
    parts.push(memoryChart(view, memory, names));
    const kept = report.summary.memory.slice(0, 3).filter(([, size]) => size).map(([name]) => name).join(", ");
    const shades = [...(kept ? [[kept, "--memory-1"]] : []), ["activations", "--memory-3"], ...(memory.points.some(([, , passing]) => passing) ? [["gradients of activations", "--memory-4"]] : [])];
    parts.push(el("ul", { class: "legend" }, shades.map(([name, color]) => el("li", {}, el("i", { style: { background: `var(${color})` } }), name)),
      memory.rest ? el("li", { class: "soft" }, `dashed: the plan's peak; ${bytes(memory.rest)} of it are workspace and gathered copies`) : null));
    if (memory.holders.length) parts.push(el("details", {}, el("summary", {}, "What makes the peak"), sortable(memory.holders, [
      { label: "tensor", value: (row) => names[row[0]], node: (row) => named(names[row[0]] + (row[2] ? " (gradient)" : "")), name: true },
      { label: "bytes per device", value: (row) => row[1], text: (row) => bytes(row[1]), number: true },
    ], { by: 1, name: "largest values at the peak" })));
  }
  return section("schedule", "Schedule", el("div", { class: "card" }, parts, taskTable(schedule, names)));
}
function stageTable(runs) {
  const number = (at) => (at === 1 || at > 3 ? "number" : at === 3 ? "name" : "");
  return el("div", { class: "card scroll", style: { marginBottom: "12px" } }, el("table", { class: "compared" },
    el("thead", {}, el("tr", {}, ["stage", "devices", "mesh", "runs", "of step", "busy", "in flight", "memory"].map((text, at) => el("th", { scope: "col", class: number(at) }, text)))),
    el("tbody", {}, runs.map((row) => el("tr", {}, row.map((text, at) => el(at ? "td" : "th", { class: number(at), scope: at ? null : "row" }, at === 3 ? named(text) : text)))))));
}
function ganttView(report) {
  const { chart: made } = report, view = timeWindow(made.length);
  const tasks = made.tasks.map((task) => task.map((value, at) => (at === T_NAME ? value + made.shift : value)));
  const schedule = { ...made, tasks };
  const color = (lane, task) => { const name = made.names[task[T_NAME]]; return lane >= made.computing ? "--other" : name.startsWith("forward") ? "--axis-0" : "--axis-2"; };
  return section("schedule", "Pipeline", el("div", { class: "card" }, scheduleTools(view), lanes(view, schedule, made.names, color),
    el("ul", { class: "legend" }, [["forward", "--axis-0"], ["backward", "--axis-2"], ["between stages", "--other"]].map(([name, shade]) => el("li", {}, el("i", { style: { background: `var(${shade})` } }), name)), Math.abs(made.length - report.summary.step) > 0.001 * made.length ? el("li", { class: "soft" }, `simulated, every microbatch waiting for its sends: ${duration(made.length)}; the step above, ${duration(report.summary.step)}, is by the schedule's formula, in which sends overlap as far as the cluster profile says`) : null), taskTable(schedule, made.names)));
}
