// Draw the block `data_visualization`: a picture, its legend, and its numbers as a table.

import { plot } from "./plot.js";
import { el } from "./dom.js";

const KINDS = { pie: "Pie chart", bar: "Bar chart", area: "Area chart", line: "Line chart" };
const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 12 });
const share = new Intl.NumberFormat(undefined, {
  style: "percent",
  maximumFractionDigits: 1,
});

/** A figure for a chart, or null for a kind that Slack does not have. */
export function chartFigure(block) {
  const chart = block.chart ?? {};
  if (!Object.hasOwn(KINDS, chart.type)) return null;
  const isPie = chart.type === "pie";
  const names = (isPie ? chart.segments : chart.series).map((one) =>
    isPie ? one.label : one.name,
  );
  const picture = el("div", { class: "chart-picture" });
  const said = `${KINDS[chart.type]}; its numbers are in the table below.`;
  // Drawn for the actual width, so that its text has the normal size.
  new ResizeObserver(([{ contentRect }]) => {
    const width = Math.floor(contentRect.width);
    if (width > 0) picture.replaceChildren(plot(chart, width, said));
  }).observe(picture);
  return el(
    "figure",
    { class: "block-chart" },
    el("figcaption", {}, el("bdi", {}, block.title ?? "")),
    picture,
    el("ul", { class: "chart-legend", "aria-hidden": "true" }, names.map(legendEntry)),
    el(
      "details",
      { class: "chart-numbers" },
      el("summary", {}, "Show the numbers"),
      numbers(block.title, isPie ? pieRows(chart) : axisRows(chart, names)),
    ),
  );
}

function legendEntry(name, at) {
  const key = el("span", { class: `chart-key series-${at}` });
  return el("li", {}, key, el("bdi", {}, name));
}

function pieRows({ segments }) {
  const whole = segments.reduce((sum, one) => sum + one.value, 0);
  const rows = segments.map((one) => [
    one.label,
    number.format(one.value),
    share.format(one.value / whole),
  ]);
  return [["", "Value", "Share"], ...rows];
}

function axisRows({ series, axis_config: axis }, names) {
  const rows = axis.categories.map((category) => [
    category,
    ...series.map(({ data }) =>
      number.format(data.find(({ label }) => label === category)?.value ?? 0),
    ),
  ]);
  return [[axis.x_label ?? "", ...names], ...rows];
}

function numbers(title, [head, ...rows]) {
  const cells = (row, first) =>
    row.map((text, at) => {
      const isHead = first || at === 0;
      const scope = first ? "col" : isHead && "row";
      const isEmpty = isHead && text === "";
      return el(isEmpty ? "td" : isHead ? "th" : "td", { scope: !isEmpty && scope }, [
        el("bdi", {}, text),
      ]);
    });
  return el(
    "div",
    { class: "block-table", tabindex: "0", role: "group", "aria-label": "Numbers" },
    el(
      "table",
      {},
      el("caption", { class: "visually-hidden" }, title ?? ""),
      el("thead", {}, el("tr", {}, cells(head, true))),
      el("tbody", {}, rows.map((row) => el("tr", {}, cells(row, false)))),
    ),
  );
}
