// Render Block Kit blocks. An unknown block is shown as an error.

import { chartFigure } from "./chart.js";
import { el } from "./dom.js";
import { elementNode, isElement } from "./elements.js";
import { field, isField } from "./fields.js";
import { richText } from "./richtext.js";
import { plainText, textObject } from "./text.js";

/**
 * Nodes for `blocks` on a surface: `{kind, workspace, values, act}`, where `kind` is
 * `message`, `modal` or `home`, `values` is Slack's `state.values` to start from, and
 * `act(block, element, control, chosen)` sends an action.
 */
export function blockNodes(blocks, surface) {
  return (blocks ?? []).map((block, index) => {
    const draw = BLOCKS[block?.type];
    const named = { ...block, block_id: block?.block_id || `block-${index}` };
    const node = draw ? draw(named, surface) : unknownBlock(block?.type);
    node.classList.add("block");
    node.dataset.blockId = named.block_id;
    return node;
  });
}

const BLOCKS = {
  header,
  section,
  context,
  divider: () => el("hr", { class: "block-divider" }),
  actions,
  rich_text: (block, { workspace }) =>
    el("div", { class: "block-rich-text" }, richText(block, workspace)),
  image,
  input,
  table,
  data_visualization: chart,
  alert,
};

function unknownBlock(type) {
  return el(
    "div",
    { class: "block-unknown", role: "alert" },
    el("strong", {}, "Unknown block"),
    ` ${JSON.stringify(type ?? null)}: this page cannot draw it.`,
  );
}

function header(block) {
  const level = Math.min(Math.max(Number(block.level) || 2, 1), 4) + 1;
  return el(
    `h${level}`,
    { class: "block-header" },
    el("bdi", {}, plainText(block.text)),
  );
}

function section(block, surface) {
  const { workspace } = surface;
  const fields = (block.fields ?? []).map((one) =>
    el("div", { class: "section-field" }, textObject(one, workspace)),
  );
  return el(
    "div",
    { class: "block-section" },
    el(
      "div",
      { class: "section-main" },
      block.text && el("div", { class: "section-text" }, textObject(block.text, workspace)),
      fields.length > 0 && el("div", { class: "section-fields" }, fields),
    ),
    block.accessory &&
      el("div", { class: "section-accessory" }, interactive(block.accessory, block, surface)),
  );
}

function context(block, { workspace }) {
  const parts = (block.elements ?? []).map((part) =>
    part.type === "image"
      ? imageBox(part, "context-image")
      : el("span", { class: "context-text" }, textObject(part, workspace)),
  );
  return el("div", { class: "block-context" }, parts);
}

function actions(block, surface) {
  const controls = (block.elements ?? []).map((one) => interactive(one, block, surface));
  return el("div", { class: "block-actions", role: "group" }, controls);
}

function interactive(element, block, surface) {
  if (element.type === "image") return imageBox(element, "accessory-image");
  if (isElement(element)) return elementNode(element, block, surface);
  if (isField(element)) return field(element, block, surface).node;
  return el(
    "span",
    { class: "block-unknown", role: "alert" },
    `Unknown element ${JSON.stringify(element.type ?? null)}`,
  );
}

function image(block) {
  return el(
    "figure",
    { class: "block-image" },
    block.title && el("figcaption", {}, plainText(block.title)),
    imageBox(block, "image-box"),
  );
}

// Pictures are never loaded: requests would reveal the viewer to an outside server.
function imageBox(part, className) {
  const source = part.image_url ?? part.slack_file?.id ?? part.slack_file?.url ?? "";
  return el(
    "span",
    { class: `image ${className}`, role: "img", "aria-label": part.alt_text ?? "" },
    el("span", { class: "image-alt" }, `Image: ${part.alt_text ?? ""}`),
    el("bdi", { class: "image-source" }, source),
  );
}

function input(block, surface) {
  const element = block.element ?? {};
  if (!isField(element)) return unknownBlock(`input / ${element.type}`);
  const made = field(element, block, surface);
  const hint =
    block.hint && el("p", { class: "hint", id: made.id + "-hint" }, plainText(block.hint));
  const error = el("p", { class: "error", id: made.id + "-error", role: "alert" });
  const label = el(
    made.group ? "div" : "label",
    { class: "label", id: made.id + "-label", for: made.group ? null : made.id },
    el("bdi", {}, plainText(block.label)),
    block.optional && el("span", { class: "optional" }, "optional"),
  );
  made.control.setAttribute(
    "aria-describedby",
    [hint && hint.id, error.id].filter(Boolean).join(" "),
  );
  if (made.group) made.control.setAttribute("aria-labelledby", label.id);
  else if (!block.optional) made.control.setAttribute("aria-required", "true");
  return el("div", { class: "block-input" }, label, made.node, error, hint);
}

function table(block, { workspace }) {
  const settings = block.column_settings ?? [];
  const rows = (block.rows ?? []).map((row, at) =>
    el(
      "tr",
      {},
      row.map((cell, column) => tableCell(cell, at === 0, settings[column], workspace)),
    ),
  );
  return el(
    "div",
    { class: "block-table", tabindex: "0", role: "group", "aria-label": "Table" },
    el("table", {}, el("tbody", {}, rows)),
  );
}

function tableCell(cell, isHead, setting, workspace) {
  const node = el(isHead ? "th" : "td", {
    scope: isHead && "col",
    class: setting?.is_wrapped ? "wrapped" : null,
  });
  if (["left", "center", "right"].includes(setting?.align)) {
    node.style.setProperty("text-align", setting.align);
  }
  if (cell.type === "rich_text") node.append(...richText(cell, workspace));
  else if (["raw_text", "raw_number"].includes(cell.type)) {
    node.append(el("bdi", {}, String(cell.text ?? cell.value ?? "")));
  } else node.append(unknownBlock(`table cell / ${cell.type}`));
  return node;
}

function chart(block, { kind }) {
  if (kind !== "message") return unknownBlock(`chart outside a message (${kind})`);
  return chartFigure(block) ?? unknownBlock(`chart / ${block.chart?.type}`);
}

const LEVELS = ["default", "info", "warning", "error", "success"];

function alert(block, { kind, workspace }) {
  if (kind !== "modal") return unknownBlock(`alert outside a modal (${kind})`);
  const level = LEVELS.includes(block.level) ? block.level : "default";
  return el(
    "div",
    {
      class: `block-alert alert-${level}`,
      role: level === "error" || level === "warning" ? "alert" : "note",
      "data-level": level,
    },
    textObject(block.text, workspace),
  );
}
