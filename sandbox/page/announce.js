// Announce new messages to screen readers through the page's ARIA live region.
// Like Slack's client, it reads the top-level text and not the blocks.

import { el } from "./dom.js";
import { spoken } from "./text.js";

const root = document.getElementById("live");
const KEPT = 5;
let person = null;
let newest = 0;

/** Announce new messages since the last call; the first call for a person is silent. */
export function announce({ state, workspace }) {
  const since = person === state.me.id ? newest : Number.POSITIVE_INFINITY;
  person = state.me.id;
  for (const channel of state.channels) {
    for (const message of channel.messages) {
      const at = Number.parseFloat(message.ts);
      newest = Math.max(newest, at);
      if (at > since && message.user !== state.me.id) say(message, channel, workspace);
    }
  }
}

function say(message, channel, workspace) {
  const where = channel.is_im ? "" : ` in ${channel.name}`;
  const seen = message.ephemeral ? ", only visible to you" : "";
  const words = spoken(message.text, workspace);
  const line = `${workspace.nameOf(message.user)}${where}${seen}: ${words}`;
  root.append(el("p", {}, line));
  while (root.childElementCount > KEPT) root.firstElementChild.remove();
}
