// Client state of the page; regions are rendered again when it changes.

import { listen, loadState, sendAct } from "./api.js";
import { announce } from "./announce.js";
import { renderConversation, startConversation } from "./conversation.js";
import { openDrawer, renderHeading, renderStatus } from "./heading.js";
import { renderHome } from "./home.js";
import { count, released } from "./pointer.js";
import { addressOf, readPlace } from "./router.js";
import { renderSidebar } from "./sidebar.js";
import { renderSuggestions } from "./suggestions.js";
import { showNotices, toast } from "./toasts.js";
import { markRead } from "./unread.js";
import { renderModals } from "./views.js";
import { Workspace } from "./workspace.js";

/** The arguments of every region: the state, the location, and the actions. */
const app = {
  state: null,
  workspace: null,
  namesVersion: 0,
  place: readPlace(),
  online: true,
  act,
  go,
  render,
  toast,
};

/** Send an action as the current person (or `body.user`), and show its effect before answering. */
async function act(body) {
  if (["block_actions", "view_submission"].includes(body.type)) count("interactions");
  const answer = await sendAct({ user: app.state.me.id, ...body });
  await refresh();
  return answer;
}

let running = null;
let again = false;

/** Fetch the state and redraw; calls in between are answered by one more fetch. */
function refresh() {
  again = true;
  running ??= fetchAll().finally(() => (running = null));
  return running;
}

async function fetchAll() {
  while (again) {
    again = false;
    const user = app.place.user;
    try {
      const state = await loadState(user);
      await released();
      if (user === app.place.user) take(state);
    } catch (error) {
      failed(error);
    }
  }
}

function take(state) {
  const workspace = new Workspace(state);
  if (workspace.namesKey !== app.workspace?.namesKey) app.namesVersion += 1;
  Object.assign(app, { state, workspace, online: true });
  if (app.place.user === null) {
    app.place.user = state.me.id;
    history.replaceState(null, "", addressOf(app.place));
  }
  render();
  announce(app);
  showNotices(state);
}

function failed(error) {
  console.warn(error);
  app.online = false;
  if (app.state !== null) renderStatus(app);
  else document.getElementById("status").textContent = String(error.message ?? error);
}

/** Navigate: any of `user`, `home`, `channel` and `thread`. */
function go(change) {
  const place = { ...app.place, ...change };
  const address = addressOf(place);
  if (address !== addressOf(app.place)) history.pushState(null, "", address);
  openDrawer(false);
  arrive(place);
}

function arrive(place) {
  const { user, home } = app.place;
  const moved = place.user !== user;
  const entersHome = place.home && (moved || !home);
  app.place = place;
  if (moved) connect();
  else render();
  if (entersHome) openHome();
}

async function openHome() {
  await refresh();
  if (app.state !== null) await act({ type: "home_opened" });
}

let stop = () => {};
let rest = null; // timer that stops listening in a tab nobody looks at

// A browser opens six connections to one server: background tabs close theirs.
const REST_AFTER_MS = 60_000;

function visibilityChanged() {
  clearTimeout(rest);
  if (document.visibilityState === "hidden") rest = setTimeout(() => stop(), REST_AFTER_MS);
  else connect();
}

/** Switch to the person of the address: fetch their state and follow changes. */
async function connect() {
  stop();
  const { user } = app.place;
  await refresh();
  if (app.state === null || (user !== null && user !== app.place.user)) return;
  stop();
  stop = listen(app.place.user, heard, (online) => {
    if (online) refresh();
    else failed("the event stream broke");
  });
}

function heard(seq) {
  if (seq !== app.state.seq) refresh();
}

/** Redraw changes. Every region keeps the nodes with unchanged content. */
function render() {
  const { state, place } = app;
  const channel = place.home ? null : channelShown();
  if (channel !== null) {
    place.channel = channel.id;
    if (document.visibilityState === "visible") markRead(state, channel);
  }
  document.getElementById("home").hidden = !place.home;
  renderSidebar(app);
  renderHeading(app, channel);
  renderStatus(app);
  renderConversation(app, channel);
  if (place.home) renderHome(app);
  renderSuggestions(app);
  renderModals(app);
  const where = place.home ? state.bot.name : channel ? app.workspace.titleOf(channel) : "";
  document.title = `${where} – ${app.workspace.nameOf(state.me.id)} – ${state.team.name}`;
  document.documentElement.style.setProperty("--me", app.workspace.colorOf(state.me.id));
}

function channelShown() {
  const { state, place, workspace } = app;
  return (
    workspace.channels.get(place.channel) ??
    state.channels.find((one) => one.is_member && !one.is_im) ??
    state.channels[0] ??
    null
  );
}

window.addEventListener("popstate", () => {
  const place = readPlace();
  arrive({ ...place, user: place.user ?? app.place.user });
});
document.addEventListener("visibilitychange", visibilityChanged);
document.getElementById("scrim").addEventListener("click", () => openDrawer(false));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || app.state === null || app.state.views.length > 0) return;
  if (document.querySelector(":popover-open") !== null) return;
  if (document.body.classList.contains("drawer-open")) openDrawer(false);
  else if (app.place.thread !== null) go({ thread: null });
});
startConversation(app);
connect();
if (app.place.home) openHome();
