// Look up people, channels and groups by id, and render their names and avatars.

import { el } from "./dom.js";
import { icon } from "./icons.js";

/** A readable view of the state the server sent. */
export class Workspace {
  constructor(state) {
    this.state = state;
    this.me = state.me;
    this.users = new Map(state.users.map((user) => [user.id, user]));
    this.users.set(state.me.id, state.me);
    this.channels = new Map(state.channels.map((channel) => [channel.id, channel]));
    this.groups = new Map(state.usergroups.map((group) => [group.id, group]));
    // A message contains names: a change of a name must redraw it.
    const { users, usergroups, bot } = state;
    this.namesKey = JSON.stringify([users, usergroups, bot.name, state.me.id]);
  }

  /** The displayed name of a user; an unknown id is shown unchanged. */
  nameOf(id) {
    const user = this.users.get(id);
    if (user) return user.real_name || user.name;
    return id === this.state.bot.user_id ? this.state.bot.name : id;
  }

  /** The colour of a user as `#rrggbb`; anything else is refused. */
  colorOf(id) {
    const color = String(this.users.get(id)?.color ?? "").replace(/^#/, "");
    return /^[0-9a-f]{6}$/i.test(color) ? `#${color}` : "#5b6472";
  }

  isBot(id) {
    return id === this.state.bot.user_id || Boolean(this.users.get(id)?.is_bot);
  }

  /** The people to switch between: all users except bots. */
  people() {
    return this.state.users.filter((user) => !user.is_bot);
  }

  /** A channel by id or by name, with or without `#`. */
  channelNamed(reference) {
    const name = String(reference ?? "").replace(/^#/, "");
    return (
      this.channels.get(name) ??
      this.state.channels.find((channel) => channel.name === name) ??
      null
    );
  }

  /** The direct message with the bot, or null. */
  botChannel() {
    return this.state.channels.find((channel) => channel.is_im) ?? null;
  }

  titleOf(channel) {
    return channel.is_im ? this.state.bot.name : channel.name;
  }

  isInMyGroups(groupId) {
    return Boolean(this.groups.get(groupId)?.users.includes(this.me.id));
  }
}

/** A square with a person's initials, or the app's picture. Decorative. */
export function avatar(workspace, id, size = "") {
  const node = el("span", { class: `avatar ${size}`, "aria-hidden": true });
  if (workspace.isBot(id)) {
    node.classList.add("avatar-bot");
    node.append(icon("bot"));
    return node;
  }
  node.style.setProperty("--person", workspace.colorOf(id));
  node.append(initials(workspace.nameOf(id)));
  return node;
}

function initials(name) {
  const words = name.split(/\s+/).filter(Boolean);
  const ends = words.length > 1 ? [words[0], words[words.length - 1]] : [words[0] ?? "?"];
  return ends.map((word) => [...word][0].toLocaleUpperCase()).join("");
}

/** Labels such as "guest" for restricted users; empty for most. */
export function standing(user) {
  if (user.deleted) return "deactivated";
  if (user.is_stranger) return "other company";
  if (user.is_ultra_restricted) return "single-channel guest";
  return user.is_restricted ? "guest" : "";
}
