// Draw a chart as SVG. Every text becomes a text node, and colours are classes.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 230;
const LEFT = 46; // room for a number such as "123.5M"
const LETTER = 6.3; // about the width of a letter of 11.5 px
const compact = new Intl.NumberFormat(undefined, {
  notation: "compact",
  maximumFractionDigits: 1,
});

/** An SVG of `width` pixels for a chart; `said` is its text for screen readers. */
export function plot(chart, width, said) {
  const parts = chart.type === "pie" ? pie(chart, width) : plane(chart, width);
  const size = { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT };
  return shape("svg", { ...size, role: "img", "aria-label": said }, parts);
}

function shape(tag, attributes, children = []) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function words(x, y, text, anchor = "middle") {
  return shape("text", { x, y, "text-anchor": anchor }, [text]);
}

/** A mark with its tooltip. */
function mark(tag, attributes, label) {
  return shape(tag, attributes, [shape("title", {}, [label])]);
}

// A slice is a dash of a circle's outline that is as wide as the radius.
function pie({ segments }, width) {
  const whole = segments.reduce((sum, one) => sum + one.value, 0);
  const radius = HEIGHT / 2 - 8;
  let before = 0;
  return segments.map(({ label, value }, at) => {
    const part = value / whole;
    const slice = mark(
      "circle",
      {
        class: `slice series-${at}`,
        cx: width / 2,
        cy: HEIGHT / 2,
        r: radius / 2,
        "stroke-width": radius,
        pathLength: 1,
        "stroke-dasharray": `${part} ${1 - part}`,
        "stroke-dashoffset": -before,
        transform: `rotate(-90 ${width / 2} ${HEIGHT / 2})`,
      },
      `${label}: ${value}`,
    );
    before += part;
    return slice;
  });
}

const MARKS = { bar: bars, line: lines, area: areas };

function plane(chart, width) {
  const { categories, x_label: below, y_label: above } = chart.axis_config;
  const rows = chart.series.map(({ name, data }) => ({
    name,
    values: categories.map((one) => data.find(({ label }) => label === one)?.value ?? 0),
  }));
  const ticks = ticksOf(rows.flatMap(({ values }) => values));
  const top = above ? 30 : 16;
  const bottom = HEIGHT - (below ? 42 : 24);
  const [low, high] = [ticks[0], ticks[ticks.length - 1]];
  const slot = (width - LEFT) / categories.length;
  const at = {
    slot,
    x: (index) => LEFT + slot * (index + 0.5),
    y: (value) => bottom - ((value - low) / (high - low)) * (bottom - top),
    said: (row, index) => `${categories[index]} · ${row.name}: ${row.values[index]}`,
  };
  return [
    ...ticks.flatMap((tick) => gridline(tick, at.y(tick), width)),
    ...MARKS[chart.type](rows, at),
    ...labels(categories, at, width, bottom + 17),
    ...(above ? [words(0, 12, above, "start")] : []),
    ...(below ? [words((LEFT + width) / 2, HEIGHT - 5, below)] : []),
  ];
}

function gridline(tick, y, width) {
  const kind = tick === 0 ? "grid zero" : "grid";
  return [
    shape("line", { class: kind, x1: LEFT, x2: width, y1: y, y2: y }),
    words(LEFT - 8, y + 4, compact.format(tick), "end"),
  ];
}

/** Round numbers from below the least value to above the greatest; zero is among them. */
function ticksOf(values) {
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values);
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((one) => one * power >= rough) ?? 10;
  // Counts of calls have no fractions.
  const least = values.every(Number.isInteger) ? 1 : 0;
  const step = Math.max(least, factor * power);
  const first = Math.floor(low / step);
  const last = Math.max(Math.ceil(high / step), first + 1);
  return Array.from({ length: last - first + 1 }, (_, n) => (first + n) * step);
}

/** As many categories as fit next to each other. */
function labels(categories, { slot, x }, width, y) {
  const wide = (text) => text.length * LETTER;
  const every = Math.ceil((Math.max(...categories.map(wide)) + 6) / slot);
  return categories.flatMap((text, index) => {
    if (index % every !== 0) return [];
    const half = wide(text) / 2;
    return [words(Math.max(half, Math.min(x(index), width - half)), y, text)];
  });
}

function bars(rows, at) {
  const group = at.slot * 0.82;
  const wide = group / rows.length;
  // Above all bars or above none: a bar without its number would look empty.
  const texts = rows.flatMap(({ values }) => values.map((one) => compact.format(one)));
  const hasRoom = texts.every((text) => text.length * LETTER <= wide);
  return rows.flatMap((row, series) =>
    row.values.flatMap((value, index) => {
      const x = at.x(index) - group / 2 + wide * series;
      const [y, zero] = [at.y(value), at.y(0)];
      const bar = mark(
        "rect",
        {
          class: `bar series-${series}`,
          x: x + wide * 0.06,
          y: Math.min(y, zero),
          width: wide * 0.88,
          height: Math.abs(zero - y),
        },
        at.said(row, index),
      );
      const isSaid = hasRoom && value > 0;
      return isSaid ? [bar, words(x + wide / 2, y - 4, compact.format(value))] : [bar];
    }),
  );
}

function lines(rows, at) {
  return rows.flatMap((row, series) => {
    const path = row.values.map((value, index) => `${at.x(index)},${at.y(value)}`);
    const points = row.values.map((value, index) =>
      mark(
        "circle",
        { class: `dot series-${series}`, cx: at.x(index), cy: at.y(value), r: 3.5 },
        at.said(row, index),
      ),
    );
    return [
      shape("polyline", { class: `curve series-${series}`, points: path.join(" ") }),
      ...points,
    ];
  });
}

// The first series is at the back.
function areas(rows, at) {
  const fills = rows.map(({ values }, series) => {
    const path = values.map((value, index) => `${at.x(index)},${at.y(value)}`);
    const ends = [`${at.x(values.length - 1)},${at.y(0)}`, `${at.x(0)},${at.y(0)}`];
    const points = [...path, ...ends].join(" ");
    return shape("polygon", { class: `area series-${series}`, points });
  });
  return [...fills, ...lines(rows, at)];
}
