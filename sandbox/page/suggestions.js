// Render the suggested requests to the agent.

import { el, fill } from "./dom.js";
import { explain } from "./api.js";
import { press } from "./elements.js";

/** Draw a button for each suggestion; a click posts its text as the suggestion's person,
 * or as the current one. */
export function renderSuggestions(app) {
  const { suggestions, me } = app.state;
  const root = document.getElementById("suggestions");
  root.hidden = app.place.home || suggestions.length === 0;
  fill(root, JSON.stringify([suggestions, me.id]), () => [
    el("span", { class: "suggestions-title", id: "suggestions-title" }, title(app)),
    el(
      "div",
      { class: "suggestions", role: "group", "aria-labelledby": "suggestions-title" },
      suggestions.map((suggestion, at) => button(suggestion, at, app)),
    ),
  ]);
}

/** Show the author: the suggestions' person if all have the same one. */
function title({ state: { suggestions, me, users } }) {
  const asker = suggestions[0]?.user;
  const same = suggestions.every((suggestion) => suggestion.user === asker);
  const other = same && asker && asker !== me.id && users.find((user) => user.id === asker);
  return other ? `Let ${other.real_name} ask the agent to` : "Ask the agent to";
}

function button({ label, text, channel: reference, user }, at, app) {
  const ask = async () => {
    const channel = app.workspace.channelNamed(reference);
    if (channel === null) {
      app.toast(`There is no channel ${reference} here for you.`, "error");
      return;
    }
    // One after the other, to keep their order.
    for (const line of text.split("\n")) {
      const body = { type: "message", channel: channel.id, text: line, ...(user && { user }) };
      const answer = await app.act(body);
      if (!answer.ok) {
        app.toast(explain(answer), "error");
        return;
      }
    }
    app.go({ home: false, channel: channel.id, thread: null });
  };
  const node = el(
    "button",
    { type: "button", class: "suggestion", title: text, "data-hook": `suggestion-${at}` },
    el("bdi", { class: "button-text" }, label),
  );
  node.addEventListener("click", () => press(node, {}, {}, { act: ask }));
  return node;
}
