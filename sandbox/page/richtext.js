// Draw rich_text blocks. Their text is never parsed as mrkdwn.

import { el } from "./dom.js";
import { emoji } from "./emoji.js";
import {
  broadcast,
  channelMention,
  dateNode,
  groupMention,
  link,
  userMention,
} from "./text.js";

/** Nodes for the parts of a rich_text block. */
export function richText(block, workspace) {
  return (block.elements ?? []).map((part) => richPart(part, workspace));
}

function richPart(part, workspace) {
  switch (part.type) {
    case "rich_text_section":
      return el("div", { class: "rich-section" }, inlines(part, workspace));
    case "rich_text_preformatted":
      return el(
        "pre",
        { class: "preformatted", "data-language": part.language ?? null },
        inlines(part, workspace),
      );
    case "rich_text_quote":
      return el("blockquote", {}, inlines(part, workspace));
    case "rich_text_list":
      return list(part, workspace);
    default:
      return unknownPart(part);
  }
}

function list(part, workspace) {
  const ordered = part.style === "ordered";
  const node = el(
    ordered ? "ol" : "ul",
    { class: "rich-list", start: ordered ? (part.offset ?? 0) + 1 : null },
    (part.elements ?? []).map((item) => el("li", {}, inlines(item, workspace))),
  );
  node.style.setProperty("--indent", String(Number(part.indent) || 0));
  return node;
}

function inlines(part, workspace) {
  return (part.elements ?? []).map((element) => {
    const node = richInline(element, workspace);
    return styled(node, element.style ?? {});
  });
}

function richInline(element, workspace) {
  switch (element.type) {
    case "text":
      return document.createTextNode(element.text ?? "");
    case "emoji":
      return document.createTextNode(pictureOf(element));
    case "link":
      return link(element.url ?? "", element.text ?? "");
    case "user":
      return userMention(element.user_id, workspace);
    case "usergroup":
      return groupMention(element.usergroup_id, workspace);
    case "channel":
      return channelMention(element.channel_id, workspace);
    case "broadcast":
      return broadcast(element.range);
    case "date":
      return dateNode(element.timestamp, element.format, element.fallback ?? "");
    case "color":
      return swatch(element.value ?? "");
    default:
      return unknownPart(element);
  }
}

function pictureOf({ unicode, name }) {
  if (/^[0-9a-f]+(-[0-9a-f]+)*$/i.test(unicode ?? "")) {
    const points = unicode.split("-").map((point) => Number.parseInt(point, 16));
    if (points.every((point) => point <= 0x10ffff)) return String.fromCodePoint(...points);
  }
  return emoji(name) ?? `:${name}:`;
}

function swatch(value) {
  const dot = el("span", { class: "swatch", "aria-hidden": true });
  if (/^#[0-9a-f]{3,8}$/i.test(value)) dot.style.setProperty("background", value);
  return el("span", {}, dot, value);
}

const STYLES = {
  bold: "strong",
  italic: "em",
  strike: "s",
  code: "code",
  underline: "u",
  highlight: "mark",
};

function styled(node, style) {
  let wrapped = node;
  for (const [name, tag] of Object.entries(STYLES)) {
    if (style[name] === true) wrapped = el(tag, {}, wrapped);
  }
  return wrapped;
}

function unknownPart(part) {
  const said = `Unknown rich text element: ${part?.type ?? "without a type"}`;
  return el("span", { class: "broken", role: "alert" }, said);
}
