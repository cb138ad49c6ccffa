// Draw App Home: the app's page for one person.

import { blockNodes } from "./blocks.js";
import { el, fill } from "./dom.js";
import { collectValues } from "./fields.js";
import { viewSurface } from "./views.js";

const root = document.getElementById("home");

/** Draw the Home view; it is rebuilt only when its hash changes, keeping entries. */
export function renderHome(app) {
  const view = app.state.home;
  const signature = JSON.stringify([view?.id, view?.hash, app.namesVersion]);
  const sameView = view !== null && root.dataset.viewId === view.id;
  const entered = sameView ? collectValues(root) : {};
  const scrolled = root.scrollTop;
  fill(root, signature, () => {
    if (view === null) return emptyHome(app.state.bot.name);
    return el(
      "div",
      { class: "home-page" },
      blockNodes(view.blocks, viewSurface(view, app, root, entered)),
    );
  });
  if (view !== null) root.dataset.viewId = view.id;
  if (sameView) root.scrollTop = scrolled;
}

function emptyHome(name) {
  return el(
    "div",
    { class: "empty" },
    el("h3", {}, "Nothing here yet"),
    el("p", {}, `${name} has not published a Home page for you.`),
  );
}
