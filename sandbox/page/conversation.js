// Show one channel in the main column, and one of its threads next to it.

import { Composer } from "./composer.js";
import { el, fill } from "./dom.js";
import { icon } from "./icons.js";
import { isReply, renderMessages, repliesOf, walkMessages } from "./messages.js";

const slot = (id) => document.getElementById(id);
const composers = {};
let jump = null;

/** Prepare the parts that live as long as the page. */
export function startConversation(app) {
  composers.main = new Composer(slot("composer"), app);
  composers.thread = new Composer(slot("thread-composer"), app);
  const timeline = slot("timeline");
  walkMessages(timeline);
  walkMessages(slot("thread-timeline"));
  jump = el(
    "button",
    {
      type: "button",
      class: "button jump",
      hidden: true,
      onclick: () => timeline.scrollTo({ top: timeline.scrollHeight, behavior: "smooth" }),
    },
    icon("down"),
    "New messages",
  );
  timeline.after(jump);
  let atEnd = true;
  let top = 0;
  timeline.addEventListener("scroll", () => {
    const left = timeline.scrollHeight - timeline.scrollTop - timeline.clientHeight;
    // Only scrolling up leaves the end: new content below may precede this event.
    atEnd = left < 60 || (atEnd && timeline.scrollTop >= top);
    top = timeline.scrollTop;
    if (atEnd) jump.hidden = true;
  });
  // The composer below may grow or shrink; a reader at the end stays at the end.
  new ResizeObserver(() => {
    if (atEnd) timeline.scrollTop = timeline.scrollHeight;
  }).observe(timeline);
}

let newest = null; // [channel id, ts] of the last message shown

/** Draw `channel` (null for none) and the thread that is open in it. */
export function renderConversation(app, channel) {
  const timeline = slot("timeline");
  const hidden = channel === null;
  timeline.hidden = hidden;
  slot("composer").hidden = hidden;
  slot("main").dataset.channel = channel?.id ?? "";
  if (hidden) {
    slot("thread").hidden = true;
    jump.hidden = true;
    return;
  }
  const threads = repliesOf(channel);
  const roots = channel.messages.filter((message) => !isReply(message));
  const { atBottom } = renderMessages(timeline, roots, { app, channel, threads });
  const last = roots.at(-1)?.ts;
  const isNew = newest?.[0] === channel.id && newest[1] !== last;
  if (atBottom) jump.hidden = true;
  else if (isNew) jump.hidden = false;
  newest = [channel.id, last];
  composers.main.show({
    channel: channel.id,
    label: `Message ${channel.is_im ? "" : "#"}${app.workspace.titleOf(channel)}`,
    closed: whyClosed(app, channel),
  });
  renderThread(app, channel, threads);
}

function whyClosed({ workspace, state }, channel) {
  if (state.me.deleted) return "This account is deactivated and cannot write.";
  if (channel.is_archived) return "This channel is archived.";
  if (channel.is_member) return null;
  return `${workspace.nameOf(state.me.id)} is not in this channel and can only read it.`;
}

function renderThread(app, channel, threads) {
  const { thread: ts } = app.place;
  const panel = slot("thread");
  const parent = channel.messages.find((message) => message.ts === ts);
  const wasHidden = panel.hidden;
  panel.hidden = parent === undefined;
  if (parent === undefined) return;
  panel.dataset.thread = ts;
  fill(slot("thread-heading"), channel.id, () => threadHeading(app, channel));
  const timeline = slot("thread-timeline");
  const messages = [parent, ...(threads.get(ts) ?? [])];
  renderMessages(timeline, messages, { app, channel, threads: null });
  composers.thread.show({
    channel: channel.id,
    thread_ts: ts,
    label: "Reply…",
    closed: whyClosed(app, channel),
  });
  if (wasHidden) slot("thread-heading").focus({ preventScroll: true });
}

function threadHeading(app, channel) {
  return [
    el("h2", { class: "heading-title" }, "Thread"),
    el("bdi", { class: "heading-note" }, app.workspace.titleOf(channel)),
    el(
      "button",
      {
        type: "button",
        class: "button button-icon thread-close",
        "aria-label": "Close the thread",
        onclick: () => {
          const opener = document.querySelector(
            `[data-hook="replies-${CSS.escape(app.place.thread)}"]`,
          );
          app.go({ thread: null });
          opener?.focus();
        },
      },
      icon("close"),
    ),
  ];
}
