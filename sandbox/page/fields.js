// Render input elements, and read their values in the form of Slack's `state.values`.
// https://docs.slack.dev/reference/interaction-payloads/view-interactions-payload

import { choiceList, multiSelect, select } from "./choices.js";
import { confirmed } from "./confirm.js";
import { el } from "./dom.js";
import { plainText } from "./text.js";

const fields = new WeakMap(); // node -> {block, element, control, read}
let count = 0;

/**
 * How each type is drawn and read. `draw(element, value, context)` gives
 * `{node, control, read}`; `value` and the result of `read()` are values of `key`.
 */
const TYPES = {
  plain_text_input: { key: "value", start: "initial_value", draw: textBox },
  email_text_input: { key: "value", start: "initial_value", draw: oneLine("email") },
  url_text_input: { key: "value", start: "initial_value", draw: oneLine("url") },
  number_input: { key: "value", start: "initial_value", draw: oneLine("decimal") },
  static_select: { key: "selected_option", start: "initial_option", draw: select },
  multi_static_select: {
    key: "selected_options",
    start: "initial_options",
    draw: multiSelect,
  },
  users_select: { key: "selected_user", start: "initial_user", draw: ofUsers(select) },
  multi_users_select: {
    key: "selected_users",
    start: "initial_users",
    draw: ofUsers(multiSelect),
  },
  checkboxes: { key: "selected_options", start: "initial_options", draw: choiceList },
  radio_buttons: { key: "selected_option", start: "initial_option", draw: choiceList },
  datepicker: { key: "selected_date", start: "initial_date", draw: moment("date") },
  timepicker: { key: "selected_time", start: "initial_time", draw: moment("time") },
  datetimepicker: {
    key: "selected_date_time",
    start: "initial_date_time",
    draw: dateTime,
  },
};

export const isField = (element) => Object.hasOwn(TYPES, element?.type);

/** Draw one field: `{id, node, control, group}`; `group` when it has several controls. */
export function field(element, block, surface) {
  const type = TYPES[element.type];
  const id = `field-${(count += 1)}`;
  const stored = surface.values?.[block.block_id]?.[element.action_id];
  const value = stored?.type === element.type ? stored[type.key] : element[type.start];
  const drawn = type.draw(element, value ?? null, { id, block, surface });
  const { node, control, read, group = false } = drawn;
  node.dataset.actionId = element.action_id ?? "";
  node.dataset.field = element.type;
  control.id = id;
  if (element.focus_on_load) control.dataset.focusOnLoad = "";
  const label = element.accessibility_label ?? (block.type === "input" ? null : placeholder(element));
  if (label) control.setAttribute("aria-label", label);
  const state = () => ({ type: element.type, [type.key]: read() });
  fields.set(node, { block, element, control, state });
  if (block.type !== "input" || block.dispatch_action) {
    dispatch({ node, element, block, surface, state });
  }
  return { id, node, control, group };
}

/** Every value inside `root`: `{block_id: {action_id: state}}`. */
export function collectValues(root) {
  const values = {};
  for (const { block, element, state } of fieldsIn(root)) {
    values[block.block_id] ??= {};
    values[block.block_id][element.action_id] = state();
  }
  return values;
}

/** The fields inside `root`, in reading order. */
export function fieldsIn(root) {
  return [...root.querySelectorAll("[data-field]")].map((node) => fields.get(node));
}

// Outside an input block every change is sent as an action; a text is sent on Enter.
function dispatch({ node, element, block, surface, state }) {
  const send = async () => {
    if (element.confirm && !(await confirmed(element.confirm, surface.workspace))) return;
    await surface.act(block, element, node, state());
  };
  if (!element.type.endsWith("_input")) {
    node.addEventListener("change", send);
    return;
  }
  const triggers = element.dispatch_action_config?.trigger_actions_on ?? ["on_enter_pressed"];
  if (triggers.includes("on_character_entered")) node.addEventListener("input", send);
  if (triggers.includes("on_enter_pressed")) {
    node.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
  }
}

const placeholder = (element) => plainText(element.placeholder) || null;

function textBox(element, value) {
  if (!element.multiline) return oneLine("text")(element, value);
  const control = el("textarea", {
    class: "control",
    rows: "4",
    placeholder: placeholder(element),
    spellcheck: false,
    dir: "auto",
  });
  control.value = value ?? "";
  const rows = control.value.split("\n").length;
  control.rows = Math.min(Math.max(rows + 1, 4), 16);
  return withCounter(element, control);
}

function oneLine(mode) {
  return (element, value) => {
    const control = el("input", {
      class: "control",
      type: "text",
      inputmode: mode === "decimal" && !element.is_decimal_allowed ? "numeric" : mode,
      placeholder: placeholder(element),
      autocomplete: "off",
      spellcheck: false,
      dir: "auto",
    });
    control.value = value ?? "";
    return withCounter(element, control);
  };
}

// The count appears near the limit. The text is never cut: an error reports the limit.
function withCounter(element, control) {
  const read = () => (control.value === "" ? null : control.value);
  const most = element.max_length;
  if (!most) return { node: el("div", { class: "field" }, control), control, read };
  const counter = el("span", { class: "counter", "aria-hidden": true });
  const show = () => {
    const left = most - control.value.length;
    counter.textContent = left <= Math.max(20, most / 10) ? String(left) : "";
    counter.classList.toggle("counter-over", left < 0);
  };
  control.addEventListener("input", show);
  show();
  return { node: el("div", { class: "field" }, control, counter), control, read };
}

function ofUsers(draw) {
  return (element, value, context) => {
    const { workspace } = context.surface;
    const options = workspace.people().map((user) => ({
      text: { type: "plain_text", text: workspace.nameOf(user.id) },
      value: user.id,
    }));
    const asOption = (id) => options.find((option) => option.value === id) ?? null;
    const start = Array.isArray(value) ? value.map(asOption).filter(Boolean) : asOption(value);
    const drawn = draw({ ...element, options }, start, context);
    const read = () => {
      const chosen = drawn.read();
      return Array.isArray(chosen) ? chosen.map((one) => one.value) : (chosen?.value ?? null);
    };
    return { ...drawn, read };
  };
}

function moment(type) {
  return (element, value) => {
    const control = el("input", { class: "control control-short", type });
    control.value = value ?? "";
    const node = el("div", { class: "field" }, control);
    return { node, control, read: () => control.value || null };
  };
}

// Slack stores whole seconds since 1970; the control shows the viewer's time zone.
function dateTime(element, value) {
  const control = el("input", { class: "control control-short", type: "datetime-local" });
  if (value !== null) {
    const date = new Date(value * 1000);
    const local = new Date(value * 1000 - date.getTimezoneOffset() * 60_000);
    control.value = local.toISOString().slice(0, 16);
  }
  const untouched = control.value;
  const read = () => {
    if (control.value === "") return null;
    if (control.value === untouched) return value; // keeps the seconds it came with
    return Math.floor(new Date(control.value).getTime() / 1000);
  };
  return { node: el("div", { class: "field" }, control), control, read };
}

