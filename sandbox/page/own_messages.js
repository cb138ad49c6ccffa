// Menu to edit and delete the person's messages.

import { explain } from "./api.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";
import { openMenu } from "./menu.js";

/** The messages that are being edited, with the text so far. */
const drafts = new Map();

const draftKey = (message, { app, channel }) =>
  [app.state.me.id, channel.id, message.ts].join(" ");

/** The signature of a message's edit state. */
export const isEdited = (message, context) => drafts.has(draftKey(message, context));

/** A button with Edit and Delete, only on messages of the current person. */
export function ownMenu(message, context) {
  const { app, channel } = context;
  if (message.user !== app.state.me.id || message.ephemeral || message.deleted) return null;
  const items = [
    { label: "Edit message", value: "edit", choose: () => begin(message, context) },
    {
      label: "Delete message",
      value: "delete",
      choose: () => act(context, { type: "message_deleted", channel: channel.id, ts: message.ts }),
    },
  ];
  const button = el(
    "button",
    {
      type: "button",
      class: "button button-icon own-message",
      "aria-label": "More actions",
      "aria-haspopup": "menu",
      "aria-expanded": false,
      title: "More actions",
      "data-hook": `own-${message.ts}`,
      onclick: () => openMenu(button, items),
    },
    icon("more"),
  );
  return button;
}

/** The form in place of a message's text while it is edited. */
export function editForm(message, context) {
  const { app, channel } = context;
  const key = draftKey(message, context);
  const box = el("textarea", { class: "composer-box edit-box", rows: "2", "aria-label": "Message" });
  box.value = drafts.get(key);
  box.addEventListener("input", () => drafts.set(key, box.value));
  const finish = () => {
    drafts.delete(key);
    app.render();
  };
  const save = async () => {
    const body = { type: "message_edited", channel: channel.id, ts: message.ts, text: box.value };
    if (await act(context, body)) finish();
  };
  const button = (className, label, onclick) =>
    el("button", { type: "button", class: `button ${className}`, onclick }, label);
  return el(
    "div",
    { class: "edit-message" },
    box,
    button("edit-cancel", "Cancel", finish),
    button("edit-save button-primary", "Save", save),
  );
}

function begin(message, context) {
  drafts.set(draftKey(message, context), asTyped(message.text, context.app.state));
  context.app.render();
}

async function act({ app }, body) {
  const answer = await app.act(body);
  if (!answer.ok) app.toast(explain(answer), "error");
  return answer.ok;
}

// As the person would type it: the server turns names into ids again.
function asTyped(text, state) {
  const named = (list, id) => list.find((one) => one.id === id)?.name ?? id;
  return text
    .replace(/<@(\w+)>/g, (_, id) => `@${named(state.users, id)}`)
    .replace(/<#(\w+)>/g, (_, id) => `#${named(state.channels, id)}`)
    .replaceAll("&lt;", "<")
    .replaceAll("&gt;", ">")
    .replaceAll("&amp;", "&");
}
