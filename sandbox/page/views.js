// Synchronize open modals with the server, and keep a person's input:
// a modal is redrawn only when its hash changes, and then keeps every entry whose
// block_id and action_id stayed the same, as Slack does.

import { explain } from "./api.js";
import { blockNodes } from "./blocks.js";
import { el, fill, findAgain, hooksOf, trapTab } from "./dom.js";
import { collectValues, fieldsIn } from "./fields.js";
import { icon } from "./icons.js";
import { plainText } from "./text.js";
import { problemsIn } from "./validate.js";

const root = document.getElementById("modals");
const open = new Map(); // view id -> {shade, hash, errors}
const closing = new Set(); // view ids closed here, not yet by the server
let before = null; // what had the focus when the first modal opened, and how to find it

/** Show the stack of views; the last one is on top. */
export function renderModals(app) {
  const views = app.state.views.filter((view) => !closing.has(view.id));
  if (views.length > 0 && open.size === 0) {
    const node = document.activeElement;
    before = { node, hooks: hooksOf(node) };
  }
  const wanted = new Set(views.map((view) => view.id));
  for (const [id, { shade }] of open) {
    if (wanted.has(id)) continue;
    shade.remove();
    open.delete(id);
  }
  for (const view of views) show(view, app);
  const top = stack(views);
  document.getElementById("app").inert = top !== null;
  if (top === null) giveFocusBack();
  else if (!top.contains(document.activeElement)) focusFirst(top);
}

function stack(views) {
  views.forEach((view, at) => {
    const { shade } = open.get(view.id);
    const isTop = at === views.length - 1;
    shade.inert = !isTop;
    shade.classList.toggle("shade-below", !isTop);
    if (root.children[at] !== shade) root.insertBefore(shade, root.children[at] ?? null);
  });
  return views.length === 0 ? null : open.get(views[views.length - 1].id).shade;
}

function show(view, app) {
  let entry = open.get(view.id);
  if (entry === undefined) {
    entry = { shade: shadeNode(view, app), hash: null, errors: "{}" };
    open.set(view.id, entry);
  }
  if (entry.hash !== view.hash) {
    entry.hash = view.hash;
    redraw(entry.shade, view, app);
    entry.errors = "{}";
  }
  const errors = JSON.stringify(view.errors ?? {});
  if (errors !== entry.errors) {
    entry.errors = errors;
    showErrors(entry.shade, view.errors ?? {});
  }
}

function shadeNode(view, app) {
  const shade = el("div", { class: "shade" }, el("form", { class: "dialog", novalidate: true }));
  const dialog = shade.firstElementChild;
  dialog.setAttribute("role", "dialog");
  dialog.setAttribute("aria-modal", "true");
  dialog.setAttribute("aria-labelledby", `title-${view.id}`);
  dialog.dataset.viewId = view.id;
  dialog.tabIndex = -1;
  dialog.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(dialog, view.id, app);
  });
  dialog.addEventListener("input", (event) => clearError(event.target));
  dialog.addEventListener("change", (event) => clearError(event.target));
  shade.addEventListener("keydown", (event) => {
    trapTab(shade, event);
    const menuIsOpen = document.querySelector(".menu:popover-open") !== null;
    if (event.key === "Escape" && !menuIsOpen) close(view.id, app);
    const sends = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (sends && dialog.querySelector(".modal-submit")) dialog.requestSubmit();
  });
  return shade;
}

function redraw(shade, view, app) {
  const dialog = shade.firstElementChild;
  const entered = dialog.childElementCount > 0 ? collectValues(dialog) : {};
  const scrolled = dialog.querySelector(".dialog-body")?.scrollTop ?? 0;
  const surface = viewSurface(view, app, dialog, entered);
  fill(dialog, view.hash, () => [
    el(
      "div",
      { class: "dialog-head" },
      el("h2", { class: "dialog-title", id: `title-${view.id}` }, plainText(view.title)),
      crossButton(view, app),
    ),
    el("div", { class: "dialog-body" }, blockNodes(view.blocks, surface)),
    el("p", { class: "dialog-trouble", role: "alert" }),
    el(
      "div",
      { class: "dialog-buttons" },
      closeButton(view, app),
      view.submit &&
        el(
          "button",
          { type: "submit", class: "button button-primary modal-submit", "data-hook": "submit" },
          el("span", { class: "button-text" }, plainText(view.submit)),
        ),
    ),
  ]);
  dialog.querySelector(".dialog-body").scrollTop = scrolled;
}

function closeButton(view, app) {
  return el(
    "button",
    { type: "button", class: "button modal-close", onclick: () => close(view.id, app) },
    el("span", { class: "button-text" }, plainText(view.close) || "Close"),
  );
}

function crossButton(view, app) {
  return el(
    "button",
    {
      type: "button",
      class: "button button-icon modal-x",
      "aria-label": "Close",
      onclick: () => close(view.id, app, { clear: open.size > 1 }),
    },
    icon("close"),
  );
}

/** A surface whose actions include all input in the view so far. */
export function viewSurface(view, app, dialog, entered = {}) {
  return {
    kind: view.type === "home" ? "home" : "modal",
    workspace: app.workspace,
    values: mergedValues(view.state?.values ?? {}, entered),
    act: async (block, element, _control, chosen) => {
      const answer = await app.act({
        type: "block_actions",
        view_id: view.id,
        block_id: block.block_id,
        action_id: element.action_id,
        values: collectValues(dialog),
        ...(chosen && { chosen }),
      });
      report(answer, dialog, app);
    },
  };
}

// A view that has been closed shows nothing, and Home has no such place.
function report(answer, dialog, app) {
  const trouble = dialog.isConnected ? dialog.querySelector(".dialog-trouble") : null;
  if (trouble !== null) trouble.textContent = answer.ok ? "" : explain(answer);
  else if (!answer.ok) app.toast(explain(answer), "error");
}

function mergedValues(stored, entered) {
  const merged = { ...stored };
  for (const [block, actions] of Object.entries(entered)) {
    merged[block] = { ...merged[block], ...actions };
  }
  return merged;
}

async function submit(dialog, viewId, app) {
  const button = dialog.querySelector(".modal-submit");
  if (button === null || button.getAttribute("aria-busy") === "true") return;
  const problems = problemsIn(fieldsIn(dialog));
  showErrors(dialog, problems);
  if (Object.keys(problems).length > 0) return;
  button.setAttribute("aria-busy", "true");
  const values = collectValues(dialog);
  const answer = await app.act({ type: "view_submission", view_id: viewId, values });
  button.removeAttribute("aria-busy");
  report(answer, dialog, app);
  if (answer.errors) showErrors(dialog, answer.errors);
}

// The cross closes the whole stack, as in Slack; the button and Esc only the top view.
async function close(viewId, app, { clear = false } = {}) {
  const gone = clear ? [...open.keys()] : [viewId];
  gone.forEach((id) => closing.add(id));
  renderModals(app);
  const answer = await app.act({
    type: "view_closed",
    view_id: viewId,
    ...(clear && { clear }),
  });
  gone.forEach((id) => closing.delete(id));
  if (!answer.ok) app.toast(explain(answer), "warning");
  renderModals(app);
}

function showErrors(scope, errors) {
  let first = null;
  for (const block of scope.querySelectorAll(".block-input")) {
    const text = errors[block.dataset.blockId] ?? "";
    block.querySelector(".error").textContent = text;
    block.classList.toggle("has-error", text !== "");
    const control = controlOf(block);
    if (text === "") control.removeAttribute("aria-invalid");
    else control.setAttribute("aria-invalid", "true");
    if (text !== "") first ??= control;
  }
  first?.focus();
  first?.closest(".block-input").scrollIntoView({ block: "nearest" });
}

const controlOf = (block) => fieldsIn(block)[0].control;

function clearError(target) {
  const block = target.closest(".block-input.has-error");
  if (block === null) return;
  block.classList.remove("has-error");
  block.querySelector(".error").textContent = "";
  controlOf(block).removeAttribute("aria-invalid");
}

function focusFirst(shade) {
  const dialog = shade.firstElementChild;
  const wanted =
    dialog.querySelector("[data-focus-on-load]") ??
    fieldsIn(dialog).find(({ block }) => block.type === "input")?.control ??
    dialog;
  wanted.focus({ preventScroll: true });
}

function giveFocusBack() {
  if (before === null) return;
  const { node, hooks } = before;
  before = null;
  const target = node.isConnected ? node : findAgain(document, hooks);
  if (document.activeElement === document.body) target?.focus();
}
