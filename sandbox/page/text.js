// Render text objects, mrkdwn and references. Links out of the page are not clickable, and
// every link and mention is highlighted, so that markup injection is visible.

import { el } from "./dom.js";
import { emoji, withEmoji } from "./emoji.js";
import { parseMrkdwn, unescape } from "./mrkdwn.js";
import { placeOfLink } from "./router.js";
import { formatDate, fullTime } from "./time.js";

/** The words of a plain_text object, for labels and attributes. */
export function plainText(object) {
  const text = object?.text ?? "";
  return object?.emoji === true ? withEmoji(text) : text;
}

/** Nodes for a text object of either type. */
export function textObject(object, workspace) {
  if (object?.type === "plain_text") return [el("bdi", {}, plainText(object))];
  if (object?.type === "mrkdwn") {
    return mrkdwn(object.text ?? "", workspace, { verbatim: object.verbatim === true });
  }
  return [el("span", { class: "broken" }, `Unknown text type: ${object?.type}`)];
}

/** Nodes for mrkdwn. */
export function mrkdwn(text, workspace, options = {}) {
  return parseMrkdwn(text, options).map(({ kind, nodes }) => {
    const inside = nodes.map((node) => inline(node, workspace));
    if (kind === "fence") return el("pre", { class: "preformatted" }, inside);
    if (kind === "quote") return el("blockquote", {}, inside);
    return el("span", { class: "lines" }, inside);
  });
}

/** mrkdwn as plain text, for names and announcements to screen readers. */
export function spoken(text, workspace) {
  return mrkdwn(text, workspace)
    .map((node) => node.textContent)
    .join(" ");
}

const TAGS = { bold: "strong", italic: "em", strike: "s", code: "code" };

function inline(node, workspace) {
  switch (node.kind) {
    case "text":
      return document.createTextNode(node.text);
    case "emoji":
      return document.createTextNode(emoji(node.name) ?? `:${node.name}:`);
    case "url":
      return link(node.url);
    case "angle":
      return control(node.body, workspace);
    default:
      return el(
        TAGS[node.kind],
        {},
        node.nodes.map((child) => inline(child, workspace)),
      );
  }
}

function control(body, workspace) {
  const [target, label = ""] = splitOnce(body, "|");
  const text = unescape(label);
  if (target.startsWith("@")) return userMention(target.slice(1), workspace, text);
  if (target.startsWith("#")) return channelMention(target.slice(1), workspace, text);
  if (target.startsWith("!subteam^")) {
    return groupMention(target.slice("!subteam^".length), workspace, text);
  }
  if (target.startsWith("!date^")) {
    const [, seconds, format] = target.split("^");
    return dateNode(seconds, unescape(format ?? ""), text);
  }
  if (target.startsWith("!")) return broadcast(target.slice(1));
  return link(unescape(target), text);
}

function splitOnce(text, separator) {
  const at = text.indexOf(separator);
  return at === -1 ? [text] : [text.slice(0, at), text.slice(at + separator.length)];
}

/** A link: to a message of this workspace it opens it; any other shows its address. */
export function link(url, label = "") {
  const named = label !== "" && label !== url;
  const here = placeOfLink(url);
  if (here !== null) {
    return el("a", { class: "link", href: here, "data-url": url }, named ? label : url);
  }
  return el(
    "span",
    { class: "link", "data-url": url, title: "Links do not open in the sandbox" },
    el("bdi", { class: "link-label" }, named ? label : url),
    named && [" ", el("bdi", { class: "link-url" }, url)],
  );
}

/** A loud mention of a person. */
export function userMention(id, workspace, label = "") {
  const name = workspace.users.has(id) ? workspace.nameOf(id) : label || id;
  return mention(`@${name}`, id, id === workspace.me.id);
}

/** A loud reference to a channel. */
export function channelMention(id, workspace, label = "") {
  const channel = workspace.channels.get(id);
  return mention(`#${channel ? workspace.titleOf(channel) : label || id}`, id, false);
}

/** A loud mention of a user group. */
export function groupMention(id, workspace, label = "") {
  const handle = workspace.groups.get(id)?.handle ?? label.replace(/^@/, "");
  return mention(`@${handle || id}`, id, workspace.isInMyGroups(id));
}

/** The loudest mention: @here, @channel, @everyone. */
export function broadcast(range) {
  return mention(`@${range}`, `!${range}`, true);
}

function mention(text, target, mine) {
  const classes = mine ? "mention mention-me" : "mention";
  return el("span", { class: classes, "data-mention": target }, el("bdi", {}, text));
}

/** A time in the viewer's format; hovering shows it in full. */
export function dateNode(seconds, format, fallback) {
  const date = new Date(Number(seconds) * 1000);
  const good = !Number.isNaN(date.getTime());
  return el(
    "time",
    { datetime: good && date.toISOString(), title: good && fullTime(date) },
    formatDate(seconds, format || "{date_short_pretty} {time}", fallback),
  );
}
