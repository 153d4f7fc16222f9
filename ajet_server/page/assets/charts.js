// Curves over the steps of a run, drawn by uPlot.

import { clock, make, number, visible } from "./dom.js";

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
// Lines are told apart by dashes as well; ui.css has them for the legend.
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2]];

// There is nothing between two steps, so the marks of the axis are whole numbers.
const BETWEEN_STEPS = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power));

// uPlot keeps a plot until it is destroyed.
const plots = new Map();

/** Destroys the plots of charts that are no longer in the page. */
export function clearCharts() {
  for (const [card, { plot, observer }] of plots) {
    if (card.isConnected) continue;
    plot.destroy();
    observer.disconnect();
    plots.delete(card);
  }
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function paint(i) {
  return colour(COLOURS[i % COLOURS.length]);
}

/**
 * Draws metrics over steps.
 *
 * @param title heading of the chart.
 * @param data the answer of `/v1/steps`.
 * @param names metrics to draw, those that have a curve.
 * @param stacked draws them on top of each other.
 * @param onStep is called with the step that was clicked.
 */
export function chart(title, data, names, { stacked = false, unit = "", onStep = null } = {}) {
  const shown = names.filter((name) => data.curves[name]);
  const place = make("div", { class: "plot" });
  const last = shown.map((name) => `${name} ${number(lastOf(data.curves[name].mean))}`).join(", ");
  const values = make("p", { class: "dim values" });
  say(values, data, shown, null);
  const card = make(
    "figure",
    { class: "chart", "data-metrics": shown.join(",") },
    make("figcaption", {}, make("strong", {}, title), unit ? ` (${unit})` : ""),
    place,
    values,
  );
  if (shown.length === 0 || data.steps.length === 0) return card;
  const columns = stacked ? stack(data, shown) : shown.flatMap((name) => bandColumns(data.curves[name]));
  const series = stacked ? stackedSeries(shown) : shown.flatMap((name, i) => bandSeries(name, data.curves[name], i));
  const bands = stacked ? shown.slice(1).map((_, i) => ({ series: [i + 2, i + 1], fill: `${paint(i + 1)}88` })) : shownBands(data, shown);
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  let at = data.steps.length - 1;
  const draw = () => {
    if (!card.isConnected) return;
    const plot = new uPlot(
      {
        width: Math.max(place.clientWidth, 200),
        height: 170,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 } },
        scales: { x: { time: false }, y: stacked ? { range: (_, low, high) => [0, high * 1.05 || 1] } : {} },
        axes: [
          { ...axis, size: 28, incrs: BETWEEN_STEPS },
          { ...axis, size: 56, values: (_, splits) => splits.map(number) },
        ],
        series: [{}, ...series],
        bands,
        hooks: { setCursor: [(u) => say(values, data, shown, u.cursor.idx ?? null)] },
      },
      [data.steps, ...columns],
      place,
    );
    if (onStep) {
      const choose = (index) => {
        at = Math.max(0, Math.min(data.steps.length - 1, index));
        plot.setCursor({ left: plot.valToPos(data.steps[at], "x"), top: 0 });
        place.setAttribute("aria-valuenow", data.steps[at]);
        place.setAttribute("aria-valuetext", `step ${data.steps[at]}`);
      };
      const keys = { ArrowLeft: () => choose(at - 1), ArrowRight: () => choose(at + 1), Home: () => choose(0), End: () => choose(data.steps.length - 1), Enter: () => onStep(data.steps[at]) };
      place.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
        event.preventDefault();
        keys[event.key]();
      });
      plot.over.addEventListener("click", () => plot.cursor.idx != null && onStep(data.steps[plot.cursor.idx]));
    }
    const observer = new ResizeObserver(() => plot.setSize({ width: Math.max(place.clientWidth, 200), height: 170 }));
    observer.observe(place);
    plots.set(card, { plot, observer });
  };
  // Its width is known once it is in the page.
  requestAnimationFrame(draw);
  place.setAttribute("role", onStep ? "slider" : "img");
  place.setAttribute("aria-label", visible(`${title}: ${last}; over ${data.steps.length} points${onStep ? "; Enter opens the step" : ""}`));
  if (onStep) {
    const [first, newest] = [data.steps[0], data.steps.at(-1)];
    const state = { tabindex: 0, "aria-valuemin": first, "aria-valuemax": newest, "aria-valuenow": newest, "aria-valuetext": `step ${newest}` };
    for (const [name, value] of Object.entries(state)) place.setAttribute(name, value);
  }
  return card;
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null) return values[i];
  return null;
}

function say(place, data, names, at) {
  const time = data.times[at] ? ` (${clock(data.times[at])})` : "";
  const when = at === null ? "latest" : `step ${data.steps[at]}${time}`;
  const value = (name) => number(at === null ? lastOf(data.curves[name].mean) : data.curves[name].mean[at]);
  const texts = names.map((name, i) => make("span", { class: `key c${(i % COLOURS.length) + 1}` }, `${name} ${value(name)}`));
  place.replaceChildren(...(names.length ? [make("span", {}, when), ...texts] : ["no values yet"]));
}

function bandColumns(curve) {
  return curve.low.length ? [curve.mean, curve.high, curve.low] : [curve.mean];
}

function bandSeries(name, curve, i) {
  const stroke = paint(i);
  const points = { show: curve.mean.length < 40, size: 4 };
  const line = { label: name, stroke, dash: DASHES[i % DASHES.length], width: 1.6, points, spanGaps: true };
  const edge = { stroke: "transparent", points: { show: false } };
  return curve.low.length ? [line, edge, edge] : [line];
}

function shownBands(data, names) {
  const bands = [];
  let at = 1;
  names.forEach((name, i) => {
    const banded = data.curves[name].low.length > 0;
    if (banded) bands.push({ series: [at + 1, at + 2], fill: `${paint(i)}33` });
    at += banded ? 3 : 1;
  });
  return bands;
}

function stack(data, names) {
  const sums = data.steps.map(() => 0);
  const columns = names.map((name) =>
    data.curves[name].mean.map((value, i) => {
      sums[i] += value ?? 0;
      return sums[i];
    }),
  );
  return columns;
}

function stackedSeries(names) {
  return names.map((name, i) => {
    const stroke = paint(i);
    return { label: name, stroke, fill: i === 0 ? `${stroke}88` : undefined, width: 1, points: { show: false } };
  });
}
