// Write messages and slash commands. Drafts are kept per person and conversation.
// Text is sent as it was typed: the server escapes it, as Slack does.

import { explain } from "./api.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";

const drafts = new Map(); // place -> text

/** A composer inside `slot`; `show(target)` points it at a channel or a thread. */
export class Composer {
  #slot;
  #app;
  #target = null;
  #box;
  #trouble;
  #hints;
  #send;
  #form;
  #closed;

  constructor(slot, app) {
    this.#slot = slot;
    this.#app = app;
    this.#box = el("textarea", {
      class: "composer-box",
      rows: "1",
      dir: "auto",
      "data-hook": `${slot.id}-box`,
    });
    this.#trouble = el("p", { class: "composer-trouble", role: "alert" });
    this.#hints = el("div", { class: "composer-hints" });
    this.#send = el(
      "button",
      { type: "submit", class: "button composer-send", "aria-label": "Send" },
      icon("send"),
    );
    this.#form = el("form", { class: "composer" }, this.#box, this.#send);
    this.#closed = el("p", { class: "composer-closed" });
    slot.append(this.#hints, this.#form, this.#trouble, this.#closed);
    this.#listen();
  }

  #listen() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#box.addEventListener("input", () => this.#changed());
    this.#box.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.#submit();
      }
      if (event.key === "Tab" && !event.shiftKey && this.#complete()) event.preventDefault();
    });
  }

  /** Point at `{channel, thread_ts, label, closed}`; `closed` is the reason why writing is disabled. */
  show(target) {
    const place = `${this.#app.state.me.id} ${target.channel} ${target.thread_ts ?? ""}`;
    if (this.#target?.place !== place) {
      this.#target = { ...target, place };
      this.#box.value = drafts.get(place) ?? "";
      this.#trouble.textContent = "";
      this.#changed();
    }
    this.#box.placeholder = target.label;
    this.#box.setAttribute("aria-label", target.label);
    this.#form.hidden = Boolean(target.closed);
    this.#closed.textContent = target.closed ?? "";
  }

  #changed() {
    const text = this.#box.value;
    drafts.set(this.#target.place, text);
    this.#box.style.setProperty("height", "auto");
    this.#box.style.setProperty("height", `${Math.min(this.#box.scrollHeight, 220)}px`);
    this.#send.disabled = text.trim() === "";
    const hints = this.#matching(text).map((command) =>
      el(
        "button",
        { type: "button", class: "hint-command", onclick: () => this.#fill(command) },
        command,
      ),
    );
    this.#hints.replaceChildren(...hints);
  }

  #matching(text) {
    if (!/^\/\S*$/.test(text)) return [];
    return this.#app.state.commands.filter((command) => command.startsWith(text));
  }

  #complete() {
    const [first] = this.#matching(this.#box.value);
    if (first === undefined) return false;
    this.#fill(first);
    return true;
  }

  #fill(command) {
    this.#box.value = `${command} `;
    this.#changed();
    this.#box.focus();
  }

  async #submit() {
    const target = this.#target;
    const typed = this.#box.value.trim();
    if (typed === "" || this.#form.getAttribute("aria-busy") === "true") return;
    const body = this.#bodyFor(typed, target);
    if (body === null) return;
    this.#form.setAttribute("aria-busy", "true");
    const answer = await this.#app.act(body);
    this.#form.removeAttribute("aria-busy");
    const still = this.#target.place === target.place;
    if (still) this.#trouble.textContent = answer.ok ? "" : explain(answer);
    if (!answer.ok) return;
    drafts.delete(target.place);
    // Text typed while the message was being sent is kept.
    if (still && this.#box.value.trim() === typed) this.#box.value = "";
    this.#changed();
  }

  #bodyFor(typed, { channel, thread_ts }) {
    const { commands } = this.#app.state;
    if (typed.startsWith("/")) {
      const [, command, text = ""] = /^(\S+)\s*([\s\S]*)$/.exec(typed);
      if (commands.includes(command)) {
        return { type: "command", command, text, channel };
      }
      this.#trouble.textContent = `${command} is not a command here. Known: ${commands.join(", ") || "none"}.`;
      return null;
    }
    const body = { type: "message", channel, text: typed };
    return thread_ts ? { ...body, thread_ts } : body;
  }
}
