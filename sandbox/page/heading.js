// Render the channel header and the banner for connection errors.

import { el, fill } from "./dom.js";
import { icon } from "./icons.js";
import { avatar } from "./workspace.js";

const slot = (id) => document.getElementById(id);

/** Draw the heading of the main column for `channel`, or for App Home when it is null. */
export function renderHeading(app, channel) {
  const { state, place, workspace } = app;
  const isApp = place.home || channel?.is_im;
  const signature = JSON.stringify([place, state.bot, state.me, channel && { ...channel, messages: 0 }]);
  fill(slot("heading"), signature, () => [
    menuButton(),
    isApp
      ? [
          avatar(workspace, state.bot.user_id, "avatar-small"),
          el("h2", { class: "heading-title" }, el("bdi", {}, state.bot.name)),
          tabs(app),
        ]
      : [
          el("span", { class: "heading-mark" }, icon(channel?.is_private ? "lock" : "hash")),
          el("h2", { class: "heading-title" }, el("bdi", {}, channel?.name ?? "Nothing here")),
        ],
    channel &&
      !isApp &&
      !channel.bot_is_member &&
      el("span", { class: "tag tag-warning" }, `${state.bot.name} is not in this channel`),
    el("span", { class: "only-phone heading-me" }, avatar(workspace, state.me.id, "avatar-small")),
  ]);
}

function menuButton() {
  return el(
    "button",
    {
      type: "button",
      class: "button button-icon only-phone",
      "aria-label": "Channels and people",
      "data-hook": "menu",
      onclick: () => openDrawer(true),
    },
    icon("menu"),
  );
}

/** Open or close the sidebar where it is a drawer. */
export function openDrawer(isOpen) {
  document.body.classList.toggle("drawer-open", isOpen);
  slot("scrim").hidden = !isOpen;
  if (isOpen) document.querySelector("#channels a")?.focus();
}

function tabs({ workspace, place, go }) {
  const direct = workspace.botChannel();
  const tab = (label, to, current) =>
    el(
      "button",
      {
        type: "button",
        class: "tab",
        "aria-current": current ? "page" : null,
        "data-hook": `tab-${label.toLowerCase()}`,
        onclick: () => go({ home: false, channel: null, thread: null, ...to }),
      },
      label,
    );
  return el(
    "div",
    { class: "tabs" },
    tab("Home", { home: true }, place.home),
    direct && tab("Messages", { channel: direct.id }, !place.home),
  );
}

/** Show that the server or the app is unreachable, or hide the banner. */
export function renderStatus(app) {
  const text = !app.online
    ? "Connection to the sandbox lost; trying again…"
    : app.state.bot.connected
      ? ""
      : `${app.state.bot.name} is not connected: buttons will not be answered.`;
  fill(slot("status"), text, () => text && el("p", { class: "status-line" }, text));
}
