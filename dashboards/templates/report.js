"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const choices = read("choices");
  const config = { displayModeBar: false, responsive: true };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Plotly knows no CSS: what depends on the colour scheme is set from the page's own variables.
  const themed = (layout) => {
    const ink = colour("--ink"), line = colour("--line");
    const axes = {};
    for (const key of Object.keys(layout).filter((k) => /^[xy]axis\d*$/.test(k))) {
      axes[key] = { ...layout[key], gridcolor: line, linecolor: line, tickcolor: line };
    }
    return {
      ...layout, ...axes,
      font: { color: ink, size: 12, family: getComputedStyle(document.body).fontFamily },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { ...layout.hoverlabel, bgcolor: colour("--card"), bordercolor: line, font: { color: ink } },
    };
  };
  const draw = (name) => {
    const place = document.getElementById("plot-" + name);
    if (place) Plotly.react(place, figures[name].data, themed(figures[name].layout), config);
  };

  const [acrossChoice, upChoice] = ["axis-x", "axis-y"].map((id) => document.getElementById(id));
  const value = (trial, metric) => (choices.values[trial] || {})[metric] ?? null;
  const bars = (drawn, trials, metric) => {
    const reaches = trials.map((trial) => (choices.reaches[trial] || {})[metric] || [null, null]);
    [drawn.arrayminus, drawn.array] = [0, 1].map((side) => reaches.map((reach) => reach[side]));
  };
  // Words beside a point of the right half stand to its left, or they would be cut off.
  const side = (at, metric) => {
    const scaled = choices.scales[metric].type === "log" ? Math.log : (known) => known;
    const all = Object.keys(choices.values).map((trial) => value(trial, metric)).filter((v) => v !== null).map(scaled);
    return scaled(at) > (Math.min(...all) + Math.max(...all)) / 2 ? "top left" : "top right";
  };
  const limitLine = (template, metric, along, across) => ({
    ...template, [along + "0"]: choices.limits[metric], [along + "1"]: choices.limits[metric],
    [across + "0"]: 0, [across + "1"]: 1, [along + "ref"]: along, [across + "ref"]: across + " domain",
  });
  const template = {
    type: "line", line: { color: "#cf4b4b", width: 1.5, dash: "dash" },
    label: { text: "SLA", font: { color: "#cf4b4b", size: 11 } },
  };
  const choose = () => {
    const [x, y] = [acrossChoice.value, upChoice.value];
    const { data, layout } = figures.scatter;
    for (const trace of data) {
      if (trace.meta === "front") trace.customdata = choices.fronts[x + "|" + y] || [];
      trace.x = trace.customdata.map((trial) => value(trial, x));
      trace.y = trace.customdata.map((trial) => value(trial, y));
      if (trace.meta === "standing") {
        bars(trace.error_x, trace.customdata, x);
        bars(trace.error_y, trace.customdata, y);
      }
      if (trace.meta === "mark") trace.textposition = side(trace.x[0], x);
    }
    layout.xaxis.title.text = choices.titles[x] || x;
    layout.yaxis.title.text = choices.titles[y] || y;
    Object.assign(layout.xaxis, choices.scales[x]);
    Object.assign(layout.yaxis, choices.scales[y]);
    layout.shapes = [[x, "x", "y"], [y, "y", "x"]]
      .filter(([metric]) => metric in choices.limits)
      .map(([metric, along, across]) => limitLine(template, metric, along, across));
    for (const axis of [layout.xaxis, layout.yaxis]) { delete axis.range; axis.autorange = true; }
    draw("scatter");
    note(x, y);
  };
  const note = (x, y) => {
    const drawn = Object.keys(choices.values).filter((t) => value(t, x) !== null && value(t, y) !== null);
    const left = choices.trials - drawn.length;
    document.getElementById("scatter-note").textContent = left === 0 ? ""
      : `${left} of ${choices.trials} trials have no value on these axes; the table says why.`;
  };

  const key = (row, column) => row.cells[column].dataset.sort;
  const compare = (a, b) => {
    if (a === b) return 0;
    if (a === "") return 1;
    if (b === "") return -1;
    const [p, q] = [Number(a), Number(b)];
    return Number.isNaN(p) || Number.isNaN(q) ? a.localeCompare(b) : p - q;
  };
  const sort = (table, head) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((r, s) => {
      const [a, b] = [key(r, head.cellIndex), key(s, head.cellIndex)];
      return (a === "" || b === "" || !down ? 1 : -1) * compare(a, b);
    });
    body.append(...rows);
  };

  const copy = async (button) => {
    const source = document.getElementById(button.dataset.copies);
    let done = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      done = true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  for (const name of Object.keys(figures)) if (name !== "scatter") draw(name);
  choose();
  acrossChoice.addEventListener("change", choose);
  upChoice.addEventListener("change", choose);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Object.keys(figures).forEach(draw));
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      head.querySelector("button").addEventListener("click", () => sort(table, head));
    }
  }
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
})();
