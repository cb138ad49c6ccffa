// Render the sidebar: workspace, current person, App Home and channels.

import { el, fill } from "./dom.js";
import { icon } from "./icons.js";
import { openMenu } from "./menu.js";
import { addressOf } from "./router.js";
import { toggleTheme } from "./toggle.js";
import { unreadChannels } from "./unread.js";
import { avatar, standing } from "./workspace.js";

const slot = (id) => document.getElementById(id);

/** Draw the changes in the sidebar. */
export function renderSidebar(app) {
  const { state, workspace, place } = app;
  fill(slot("workspace"), state.team.name, () => workspaceName(state));
  fill(slot("person"), workspace.namesKey, () => personButton(app));
  const unread = unreadChannels(state);
  const channels = state.channels.map(({ messages: _, ...channel }) => channel);
  const signature = JSON.stringify([channels, [...unread], place, state.bot, state.me.id]);
  fill(slot("channels"), signature, () => sections(app, unread));
  fill(slot("footer"), "footer", () => themeButton());
}

function workspaceName(state) {
  const mark = el("span", { class: "workspace-mark", "aria-hidden": true }, icon("reply"));
  return el(
    "div",
    { class: "workspace-name" },
    mark,
    el("h1", {}, el("bdi", {}, state.team.name)),
  );
}

function personButton(app) {
  const { workspace } = app;
  const { me } = workspace;
  const button = el(
    "button",
    {
      type: "button",
      class: "person",
      "aria-haspopup": "menu",
      "aria-expanded": false,
      "data-hook": "person",
      title: "Be somebody else",
      onclick: () => openMenu(button, personItems(app), "menu-people"),
    },
    avatar(workspace, me.id),
    el(
      "span",
      { class: "person-words" },
      el("bdi", { class: "person-name" }, workspace.nameOf(me.id)),
      el("span", { class: "person-note" }, standing(me) || "Switch person"),
    ),
    icon("chevron"),
  );
  return button;
}

// Each person is a real link, so that a middle click opens a tab as another person.
function personItems({ workspace, place, go }) {
  return workspace.people().map((user) => ({
    label: workspace.nameOf(user.id),
    detail: [`@${user.name}`, standing(user)].filter(Boolean).join(" · "),
    before: avatar(workspace, user.id, "avatar-small"),
    checked: user.id === workspace.me.id,
    attributes: {
      href: addressOf({ ...place, user: user.id, thread: null }),
      "data-user": user.id,
    },
    choose: () => go({ user: user.id, thread: null }),
  }));
}

function sections(app, unread) {
  const { state, place } = app;
  const open = state.channels.filter((channel) => !channel.is_im);
  const direct = app.workspace.botChannel();
  const dot = direct !== null && unread.has(direct.id);
  const botHere = place.home || (direct !== null && place.channel === direct.id);
  return [
    el("h2", { class: "section-title" }, "Channels"),
    el(
      "ul",
      { class: "places" },
      open.map((channel) =>
        placeItem({
          app,
          to: { channel: channel.id },
          current: !place.home && place.channel === channel.id,
          unread: unread.get(channel.id),
          dim: !channel.is_member,
          before: icon(channel.is_private ? "lock" : "hash"),
          label: channel.name,
        }),
      ),
    ),
    el("h2", { class: "section-title" }, "Apps"),
    el(
      "ul",
      { class: "places" },
      placeItem({
        app,
        to: dot ? { channel: direct.id } : { home: true },
        hook: direct?.id ?? "home",
        current: botHere,
        unread: dot ? unread.get(direct.id) : undefined,
        before: avatar(app.workspace, state.bot.user_id, "avatar-small"),
        label: state.bot.name,
        after: el(
          "span",
          { class: `presence ${state.bot.connected ? "presence-on" : ""}` },
          el("span", { class: "visually-hidden" }, state.bot.connected ? "connected" : "offline"),
        ),
      }),
    ),
  ];
}

// `unread` is the number of new messages that mention me, or undefined for nothing new.
function placeItem({ app, to, hook, current, unread, dim, before, label, after }) {
  const place = { home: false, channel: null, thread: null, ...to };
  const isNew = unread !== undefined;
  return el(
    "li",
    {},
    el(
      "a",
      {
        class: ["place", isNew && "place-unread", dim && "place-dim"].filter(Boolean).join(" "),
        href: addressOf({ ...place, user: app.state.me.id }),
        "data-channel": hook ?? to.channel,
        "aria-current": current ? "page" : null,
        onclick: (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          app.go(place);
        },
      },
      before,
      el("bdi", { class: "place-name" }, label),
      isNew && news(unread),
      after,
    ),
  );
}

function news(mentions) {
  const hidden = (text) => el("span", { class: "visually-hidden" }, text);
  if (mentions === 0) return el("span", { class: "unread" }, hidden("unread"));
  const words = mentions === 1 ? " mention of you" : " mentions of you";
  return el("span", { class: "mentions" }, String(mentions), hidden(words));
}

function themeButton() {
  return el(
    "button",
    { type: "button", class: "button-quiet", "data-hook": "theme", onclick: toggleTheme },
    el("span", { class: "only-light" }, icon("moon"), "Dark"),
    el("span", { class: "only-dark" }, icon("sun"), "Light"),
  );
}
