// Draw the messages of a channel or a thread.

import { explain } from "./api.js";
import { blockNodes } from "./blocks.js";
import { el, keyed } from "./dom.js";
import { collectValues } from "./fields.js";
import { icon } from "./icons.js";
import { editForm, isEdited, ownMenu } from "./own_messages.js";
import { mrkdwn, spoken } from "./text.js";
import { dayName, fullTime, moment, timeOfDay } from "./time.js";
import { avatar } from "./workspace.js";

const TOGETHER_S = 300; // messages of one person this close share one heading

/** Messages that were dismissed here; like in Slack, until the page is reloaded. */
const dismissed = new Set();

/** Why the last action of a person on a message failed, until their next one there. */
const troubles = new Map();

/** The replies below each message of a channel, by its ts. */
export function repliesOf(channel) {
  const replies = new Map();
  for (const message of channel.messages) {
    if (!isReply(message) || dismissed.has(message.ts)) continue;
    const thread = replies.get(message.thread_ts) ?? [];
    replies.set(message.thread_ts, [...thread, message]);
  }
  return replies;
}

export const isReply = ({ thread_ts: thread, ts }) => Boolean(thread) && thread !== ts;

/**
 * Show `messages` in `root`. `threads` maps a ts to its replies, or is null inside a
 * thread, which has no replies below. The view stays at the bottom.
 */
export function renderMessages(root, messages, { app, channel, threads }) {
  const atBottom = root.scrollHeight - root.scrollTop - root.clientHeight < 60;
  const shown = messages.filter((message) => !dismissed.has(message.ts));
  const items = [];
  let before = null;
  for (const message of shown) {
    const day = dayName(moment(message.ts));
    if (before === null || day !== dayName(moment(before.ts))) {
      const build = () => el("div", { class: "day", role: "separator" }, el("span", {}, day));
      items.push({ key: `day ${day}`, signature: day, build });
      before = null;
    }
    items.push(itemOf(message, before, { app, channel, threads, root }));
    before = message;
  }
  if (shown.length === 0) items.push({ key: "empty", signature: "", build: () => empty(app) });
  const shownPlace = threads === null ? messages[0].ts : channel.id;
  const changed = root.dataset.shown !== shownPlace;
  root.dataset.shown = shownPlace;
  keyed(root, items);
  if (atBottom || changed) root.scrollTop = root.scrollHeight;
  return { atBottom: atBottom || changed };
}

function empty({ state }) {
  return el(
    "div",
    { class: "empty" },
    el("h3", {}, "No messages yet"),
    el("p", {}, `Mention @${state.bot.name} to ask an agent for something.`),
  );
}

function itemOf(message, before, context) {
  const replies = context.threads?.get(message.ts) ?? [];
  const compact = continues(message, before);
  const summary = replies.map((reply) => [reply.ts, reply.user]);
  const { namesVersion } = context.app;
  return {
    key: message.ts,
    signature: JSON.stringify([
      message,
      compact,
      summary,
      namesVersion,
      context.channel.id,
      isEdited(message, context),
    ]),
    build: () => messageNode(message, { ...context, compact, replies }),
  };
}

function continues(message, before) {
  return (
    before !== null &&
    before.user === message.user &&
    !message.blocks &&
    !message.ephemeral &&
    !message.mentions_me &&
    !before.ephemeral &&
    Number(message.ts) - Number(before.ts) < TOGETHER_S
  );
}

function messageNode(message, context) {
  const { workspace } = context.app;
  const date = moment(message.ts);
  const name = workspace.nameOf(message.user);
  const time = el(
    "time",
    { class: "time", datetime: date.toISOString(), title: fullTime(date) },
    timeOfDay(date),
  );
  const classes = ["message"];
  if (context.compact) classes.push("message-compact");
  if (message.ephemeral) classes.push("message-ephemeral");
  if (message.blocks) classes.push("message-card");
  const heading = el(
    "div",
    { class: "message-head" },
    el("bdi", { class: "author", "data-user": message.user }, name),
    workspace.isBot(message.user) && el("span", { class: "tag" }, "App"),
    time,
    message.mentions_me && el("span", { class: "notified" }, "Notifies you"),
  );
  return el(
    "article",
    {
      class: classes.join(" "),
      "data-ts": message.ts,
      tabindex: "-1",
      "aria-label": `${name}, ${timeOfDay(date)}: ${spoken(message.text, workspace)}`,
    },
    context.compact ? time : avatar(workspace, message.user),
    el(
      "div",
      { class: "message-body" },
      message.ephemeral && privateLine(message, context),
      !context.compact && heading,
      contentNode(message, context),
      message.edited && el("span", { class: "edited" }, "(edited)"),
      el("p", { class: "message-trouble", role: "alert" }, troubles.get(troubleKey(message, context))),
      context.replies.length > 0 && repliesButton(message, context),
    ),
    ownMenu(message, context),
    context.threads && !message.ephemeral && replyButton(message, context),
  );
}

function contentNode(message, context) {
  const { workspace } = context.app;
  if (isEdited(message, context)) return editForm(message, context);
  if (!message.blocks) {
    return el("div", { class: "message-text" }, mrkdwn(message.text, workspace));
  }
  const content = el("div", { class: "blocks" });
  content.append(...blockNodes(message.blocks, messageSurface(message, context, content)));
  return content;
}

function messageSurface(message, { app, channel }, content) {
  return {
    kind: "message",
    workspace: app.workspace,
    values: {},
    act: async (block, element, _control, chosen) => {
      const values = collectValues(content);
      const answer = await app.act({
        type: "block_actions",
        channel: channel.id,
        ts: message.ts,
        block_id: block.block_id,
        action_id: element.action_id,
        ...(chosen && { chosen }),
        ...(Object.keys(values).length > 0 && { values }),
      });
      report(answer, message, { app, channel });
    },
  };
}

const troubleKey = (message, { app, channel }) =>
  [app.state.me.id, channel.id, message.ts].join(" ");

// The message may have been redrawn since the action began, so it is looked up again.
function report(answer, message, context) {
  const said = answer.ok ? "" : explain(answer);
  if (answer.ok) troubles.delete(troubleKey(message, context));
  else troubles.set(troubleKey(message, context), said);
  const shown = document.querySelectorAll(
    `article[data-ts="${CSS.escape(message.ts)}"] .message-trouble`,
  );
  for (const node of shown) node.textContent = said;
  if (shown.length === 0 && said !== "") context.app.toast(said, "error");
}

function privateLine(message, { app }) {
  const dismiss = () => {
    dismissed.add(message.ts);
    app.render();
  };
  return el(
    "div",
    { class: "private" },
    icon("eye"),
    el("span", {}, "Only visible to you"),
    el("button", { type: "button", class: "button-link dismiss", onclick: dismiss }, "Dismiss"),
  );
}

function repliesButton(message, { app, replies }) {
  const people = [...new Set(replies.map((reply) => reply.user))].slice(0, 4);
  const count = replies.length === 1 ? "1 reply" : `${replies.length} replies`;
  const last = moment(replies[replies.length - 1].ts);
  return el(
    "button",
    {
      type: "button",
      class: "replies",
      "data-hook": `replies-${message.ts}`,
      onclick: () => app.go({ thread: message.ts }),
    },
    people.map((id) => avatar(app.workspace, id, "avatar-small")),
    el("span", { class: "replies-count" }, count),
    el("span", { class: "replies-last" }, `last at ${timeOfDay(last)}`),
  );
}

function replyButton(message, { app }) {
  return el(
    "button",
    {
      type: "button",
      class: "button button-icon reply-in-thread",
      "aria-label": "Reply in thread",
      title: "Reply in thread",
      "data-hook": `reply-${message.ts}`,
      onclick: () => app.go({ thread: message.ts }),
    },
    icon("reply"),
  );
}

const STEPS = { ArrowDown: 1, ArrowUp: -1 };

/** Let the arrow keys move from message to message, as in an ARIA feed. */
export function walkMessages(root) {
  root.tabIndex = 0;
  root.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const at = event.target;
    if (step === undefined || (at !== root && !at.matches("article"))) return;
    const all = [...root.querySelectorAll("article")];
    const next = at === root ? all.at(-1) : all[all.indexOf(at) + step];
    if (next === undefined) return;
    event.preventDefault();
    next.focus();
  });
}
