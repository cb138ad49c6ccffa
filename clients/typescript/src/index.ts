/**
 * Let people in Slack approve the tool calls of an agent.
 *
 * `Keyturn.once` proposes a call, waits for its decision, and runs the tool at most
 * once. `Keyturn.api` sends any request of the gateway, with types.
 */

import { createHash, randomUUID } from "node:crypto";
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./api.js";

/** The records of the HTTP API, by name. */
export type Schemas = components["schemas"];
/** The arguments of a call. */
export type Args = Record<string, unknown>;

/** Runs a tool; returns the text that the model reads. */
export type Run = (args: Args, permit: Permit) => Promise<string>;
type Edit = Schemas["EditRecord"];

/** Settings of a client. */
export interface Options {
  /** `https://…`, or `http://…` on this machine; default: KEYTURN_GATEWAY. */
  url?: string;
  /** Its API key, `tk_…`; default: KEYTURN_API_KEY. */
  apiKey?: string;
  /** Name of the agent that the key belongs to. */
  agent: string;
  /** Longest wait for people and for the gateway, in milliseconds; default: no limit. */
  limitMs?: number;
}

/** A call that the model requested. A repeated call with the same names is the same call. */
export interface Call {
  /** The conversation. */
  thread: string;
  /** The model's message that contains the call. */
  messageId: string;
  /** The id of the call in that message. */
  callId: string;
  tool: string;
  args: Args;
  /** JSON Schema of the arguments: reviewers edit within it. */
  schema?: Args;
}

/** The right to run a call; pass it on to the system that the tool changes. */
export interface Permit {
  itemId: string;
  /** Equal for all attempts under one authorization. */
  idempotencyKey: string;
  /** Proof for another process that executes the call; "" without keys. */
  receipt: string;
}

/** How a call ended. */
export interface End {
  /** `unknown`: it may have taken effect. */
  kind: "ran" | "failed" | "refused" | "closed" | "unknown";
  /** What the model reads. It includes every change by a reviewer. */
  text: string;
  /** The change by a reviewer, if there was one. */
  edit?: Edit;
}

/** The gateway refused a request; nothing ran. */
export class GatewayError extends Error {
  override name = "GatewayError";
  constructor(
    readonly status: number,
    readonly problem: Partial<Schemas["Problem"]>,
  ) {
    super(problem.detail ?? problem.title ?? `The gateway answered ${status}.`);
  }
}

/** Nobody decided, or the gateway did not answer, within `limitMs`; nothing ran here. */
export class NotInTime extends Error {
  override name = "NotInTime";
}

const WAIT_S = 25;
const ANSWER_WITHIN_MS = 1000 * (WAIT_S + 10);
const ON_THE_WAY_MS = 1000;
const REPORT_WITHIN_MS = 60_000;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 10_000;
/** Longest texts, in characters: what people see of a result, and what a repetition gets. */
const MAX_SUMMARY = 500;
const MAX_PAYLOAD = 1024 * 1024;
const LATER = new Set([408, 429, 500, 502, 503, 504]);
const OPEN = {
  "keyturn.approval": "Nobody decided in time. The call stays open.",
  "keyturn.reconcile": "Nobody found out in time whether the call ran. It was cut off before.",
};
const UNKNOWN =
  "Whether this call took effect is unknown. Do not repeat it; tell the user that it has to be checked.";

/** A gateway, for one agent. */
export class Keyturn {
  /** Sends requests with types; it retries nothing. */
  readonly api: Client<paths>;
  private readonly agent: string;
  private readonly limitMs: number;

  constructor(options: Options) {
    const url = options.url ?? process.env["KEYTURN_GATEWAY"] ?? "";
    const apiKey = options.apiKey ?? process.env["KEYTURN_API_KEY"] ?? "";
    // Others could read the key, or forge a decision, on an unencrypted connection.
    if (!/^(https:\/\/.|http:\/\/(localhost|127\.0\.0\.1|\[::1\])([:/]|$))/.test(url)) {
      throw new TypeError(
        "Give the gateway's url, or set KEYTURN_GATEWAY: https://…, or http:// on this machine.",
      );
    }
    if (!apiKey.startsWith("tk_")) {
      throw new TypeError(
        "Give the apiKey that `keyturn api-keys create` printed (tk_…), or set KEYTURN_API_KEY.",
      );
    }
    this.agent = options.agent;
    this.limitMs = options.limitMs ?? Infinity;
    this.api = createClient<paths>({
      baseUrl: url.replace(/\/+$/, ""),
      headers: { Authorization: `Bearer ${apiKey}` },
      redirect: "manual", // an API key must not reach another host
    });
  }

  /**
   * Propose a call, wait for its decision, and run it at most once.
   *
   * @param call the call of the model.
   * @param run gets the authorized arguments, which a reviewer may have edited. Its
   *   text is the result that the model reads.
   * @throws NotInTime, GatewayError: nothing ran here. A call that was cut off before may
   *   have run.
   */
  async once(call: Call, run: Run): Promise<End> {
    const schema = call.schema && { schema: plain(call.schema) };
    const end = await this.decided({ ...call, args: plain(call.args), ...schema }, run);
    return withEdit(end, end.edit);
  }

  private async decided(call: Call, run: Run): Promise<End> {
    const ref = { agent: this.agent, thread: call.thread, message_id: call.messageId };
    const until = Date.now() + this.limitMs;
    const [verdict] = await this.ask(until, "/v1/submit", {
      ref,
      calls: [{ tool: call.tool, args: call.args as never, tool_call_id: call.callId }],
      ...(call.schema && { schemas: { [call.tool]: call.schema as never } }),
    });
    if (verdict === undefined) throw new GatewayError(200, { detail: "No verdict." });
    if (verdict.kind === "deny") return { kind: "refused", text: verdict.reason ?? "" };
    if (verdict.kind === "run" && !verdict.item_id) {
      const names = [this.agent, call.thread, call.messageId, call.callId];
      const key = createHash("sha256").update(JSON.stringify(names)).digest("hex");
      const permit = { itemId: "", idempotencyKey: key, receipt: "" };
      return (await attempt(run, call.args, permit)).end;
    }
    const held = new Held(verdict, ref, call, until, this.ask.bind(this));
    return held.end(verdict.kind === "hold", run);
  }

  /** Send a request until the gateway answers. */
  private async ask<P extends keyof Replies>(
    until: number,
    path: P,
    body: Bodies[P],
  ): Promise<Replies[P]> {
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      let why = "it cannot be reached";
      try {
        const left = Math.min(ANSWER_WITHIN_MS, until - Date.now());
        const signal = AbortSignal.timeout(Math.max(0, left) + ON_THE_WAY_MS);
        const found = await this.api.POST(path as never, { body, signal } as never);
        const { data, error, response } = found as Reply;
        if (response.ok) return data as Replies[P];
        const problem = (error ?? {}) as Partial<Schemas["Problem"]>;
        if (!LATER.has(response.status)) throw new GatewayError(response.status, problem);
        why = problem.detail ?? `it answered ${response.status}`;
      } catch (error) {
        if (error instanceof GatewayError) throw error;
      }
      if (Date.now() + pause > until) throw new NotInTime(`The gateway is not usable: ${why}.`);
      await sleep(pause * (0.5 + Math.random() / 2));
    }
  }
}

type Bodies = {
  "/v1/submit": Schemas["Turn"];
  "/v1/answers": Schemas["AnswersQuestion"];
  "/v1/claim": Schemas["ClaimRequest"];
  "/v1/heartbeat": Schemas["ClaimedCall"];
  "/v1/finish": Schemas["Finish"];
};
type Replies = {
  "/v1/submit": Schemas["Verdict"][];
  "/v1/answers": Schemas["Answered"][];
  "/v1/claim": paths["/v1/claim"]["post"]["responses"]["200"]["content"]["application/json"];
  "/v1/heartbeat": boolean;
  "/v1/finish": boolean;
};
type Reply = { data?: unknown; error?: unknown; response: Response };
type Ask = <P extends keyof Replies>(
  until: number,
  path: P,
  body: Bodies[P],
) => Promise<Replies[P]>;

/** A call with a record at the gateway, until its end. */
class Held {
  /** Names one attempt. */
  private owner = randomUUID();

  constructor(
    private readonly verdict: Schemas["Verdict"],
    private readonly ref: Schemas["TurnRef"],
    private readonly call: Call,
    private readonly until: number,
    private readonly ask: Ask,
  ) {}

  async end(waits: boolean, run: Run): Promise<End> {
    for (let undecided = waits; ; ) {
      if (undecided) {
        const answer = (await this.answer("keyturn.approval")) as Schemas["Answer"];
        if (answer.type !== "approve" && answer.type !== "edit") {
          return { kind: "closed", text: endedText(answer) };
        }
      }
      undecided = false;
      const asked = Date.now();
      const reply = await this.ask(this.until, "/v1/claim", this.claim());
      switch (reply.kind) {
        case "new":
          if (await this.isValid(reply, asked)) return this.run(reply, run);
          this.owner = randomUUID();
          break;
        case "done":
          return ended(reply.result, recalled(reply.result), reply.edit);
        case "busy":
          await this.pause(reply.retry_after_s ?? 1);
          break;
        case "reopened":
          undecided = true;
          break;
        case "in_doubt": {
          const found = (await this.answer("keyturn.reconcile")) as Schemas["ReconcileAnswer"];
          if (found.type === "skip") return { kind: "unknown", text: reconciledText(found) };
          break;
        }
        case "refused":
          return { kind: "refused", text: reply.reason };
        case "handed_over":
          return { kind: "refused", text: "Another program runs this call. It did not run here." };
        default:
          return { kind: "refused", text: `This client cannot answer '${reply.kind}'. The call did not run.` };
      }
    }
  }

  private claim(): Schemas["ClaimRequest"] {
    const { item_id, tool, tool_call_id } = this.verdict;
    return { item_id: item_id ?? "", ref: this.ref, tool, tool_call_id, owner: this.owner };
  }

  /** Return false for a claim that ended while its answer was on the way. */
  private async isValid(claimed: Schemas["Claimed"], asked: number): Promise<boolean> {
    if (Date.now() - asked < 500 * claimed.lease_s) return true;
    const lease = { item_id: this.verdict.item_id ?? "", fence: claimed.fence };
    return this.ask(this.until, "/v1/heartbeat", lease);
  }

  /** Wait until people answered a question about the call. */
  private async answer(kind: "keyturn.approval" | "keyturn.reconcile"): Promise<unknown> {
    const { item_id, action_hash } = this.verdict;
    const question = { kind, item_id: item_id ?? "", action_hash: action_hash ?? "" };
    for (;;) {
      const left = (this.until - Date.now()) / 1000;
      if (left <= 0) throw new NotInTime(OPEN[kind]);
      const [found] = await this.ask(this.until, "/v1/answers", {
        run: { agent: this.ref.agent, thread: this.ref.thread },
        questions: [question],
        wait_s: Math.min(WAIT_S, left),
      });
      if (found) return found.answer;
    }
  }

  private async run(claimed: Schemas["Claimed"], run: Run): Promise<End> {
    const lease = { item_id: this.verdict.item_id ?? "", fence: claimed.fence };
    const args = authorized(claimed, this.call.tool);
    if (typeof args === "string") {
      const result = { ok: false, failure: "not_started" as const, summary: args };
      await this.ask(this.until, "/v1/finish", { ...lease, result });
      return { kind: "refused", text: args };
    }
    const beat = setInterval(() => {
      this.ask(Date.now() + 1000 * claimed.lease_s, "/v1/heartbeat", lease).catch(() => undefined);
    }, (1000 * claimed.lease_s) / 3);
    const permit = {
      itemId: lease.item_id,
      idempotencyKey: claimed.idempotency_key,
      receipt: claimed.receipt ?? "",
    };
    const { result, end } = await attempt(run, args, permit).finally(() => clearInterval(beat));
    // The tool has run: whatever happens now, the model has to know its result.
    const until = Math.max(this.until, Date.now() + REPORT_WITHIN_MS);
    await this.ask(until, "/v1/finish", { ...lease, result }).catch(() => undefined);
    return claimed.edit ? { ...end, edit: claimed.edit } : end;
  }

  private async pause(seconds: number): Promise<void> {
    if (Date.now() > this.until) throw new NotInTime("Another attempt runs this call.");
    await sleep(1000 * seconds);
  }
}

/**
 * Return the arguments of a claimed call, from the bytes that people approved, or why it
 * cannot run here.
 *
 * JavaScript rounds integers above 2^53. Such a call must not run with other numbers.
 */
function authorized(claimed: Schemas["Claimed"], tool: string): Args | string {
  const digest = createHash("sha256").update(`keyturn/v1/action\0${claimed.action}`).digest("hex");
  const action = JSON.parse(claimed.action) as { tool: string; args: Args };
  if (`sha256:${digest}` !== claimed.action_hash || action.tool !== tool) {
    return "The authorized action differs from this call, so the call did not run. Tell the user.";
  }
  if (canonical(action) !== claimed.action) {
    return "JavaScript cannot represent a number of this call, so it did not run. Send it as a text.";
  }
  return action.args;
}

/** Return the text of a value by RFC 8785, whose numbers are JavaScript's. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const rows = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${rows.map(([name, one]) => `${JSON.stringify(name)}:${canonical(one)}`).join(",")}}`;
}

/** Return a copy as JSON: the gateway and the tool must get equal arguments. */
function plain(args: Args): Args {
  return JSON.parse(JSON.stringify(args)) as Args;
}

type Attempt = { result: Schemas["Result"]; end: End };

/** Run a tool; return what is recorded, and what the model reads now. */
async function attempt(run: Run, args: Args, permit: Permit): Promise<Attempt> {
  let result: Schemas["Result"];
  let text: string;
  try {
    const found: unknown = await run(args, permit);
    text = typeof found === "string" ? found : (JSON.stringify(found) ?? "");
    const payload = JSON.stringify({ v: 1, value: text });
    const kept = payload.length <= MAX_PAYLOAD ? payload : "";
    result = { ok: true, summary: short(text), payload: kept };
  } catch (error) {
    text = short(String(error));
    result = { ok: false, failure: "raised", summary: text };
  }
  return { result, end: ended(result, text) };
}

/** Return the beginning of a text, without half of a character, which JSON cannot hold. */
function short(text: string): string {
  return text.slice(0, MAX_SUMMARY).replace(/\p{Surrogate}/gu, "?");
}

/** Return the text of a recorded result. */
function recalled(result: Schemas["Result"]): string {
  if (!result.ok) return result.summary ?? "";
  try {
    const { value } = JSON.parse(result.payload ?? "") as { value: unknown };
    return typeof value === "string" ? value : JSON.stringify(value);
  } catch {
    return "This call ran, but its output was lost. Do not repeat it; tell the user that it is done.";
  }
}

function ended(result: Schemas["Result"], text: string, edit?: Edit | null): End {
  const changed = edit ? { edit } : {};
  if (result.ok) return { kind: "ran", text, ...changed };
  if (result.failure === "not_started") return { kind: "refused", text, ...changed };
  return { kind: "failed", text: `This call failed: ${text}. ${UNKNOWN}`, ...changed };
}

/**
 * Begins the text about a change by a reviewer. The model's prompt may name it: in any
 * other text, look-alikes of it are broken.
 */
export const EDIT_MARK = "[keyturn:edited]";
const LOOK_ALIKE = /\[[^\p{L}\p{N}_[]*k[^\p{L}\p{N}_]*e[^\p{L}\p{N}_]*y[^\p{L}\p{N}_]*t[^\p{L}\p{N}_]*u[^\p{L}\p{N}_]*r[^\p{L}\p{N}_]*n[^\p{L}\p{N}_]*:/giu;

/** Break imitations of an edit in the text, and put a real edit before it. */
function withEdit(end: End, edit?: Edit): End {
  const text = defuse(end.text);
  if (!edit) return { ...end, text };
  const who = JSON.stringify(edit.by.name || edit.by.user);
  const why = edit.reason ? ` Their reason: ${JSON.stringify(edit.reason)}.` : "";
  const notice =
    `A reviewer changed the arguments of this call. ` +
    `Requested: ${JSON.stringify(edit.original_args)}. ` +
    `Changed to: ${JSON.stringify(edit.edited_args)}. Changed by: ${who}.${why} ` +
    `Tell the user about the change, and do not repeat the original call.`;
  return { ...end, text: `${EDIT_MARK} ${defuse(notice)}\n\n${text}`, edit };
}

function defuse(text: string): string {
  return text.replace(LOOK_ALIKE, "[not-keyturn:");
}

function endedText(answer: Schemas["Answer"]): string {
  const who = answer.by ? JSON.stringify(answer.by.name) : "Nobody";
  const said = answer.message ? JSON.stringify(answer.message) : "";
  if (answer.type === "reject") {
    return `${who} rejected this call, so it did not run.${said && ` Their reason: ${said}.`} Do not make the same call again. Tell the user.`;
  }
  if (answer.type === "respond") {
    return `This call did not run. ${who} answered it instead: ${said}. Take this as the answer.`;
  }
  return `${answer.message || "This call did not run."} Do not make the same call again. Tell the user.`;
}

function reconciledText(answer: Schemas["ReconcileAnswer"]): string {
  const note = answer.message ? ` Their note: ${JSON.stringify(answer.message)}.` : "";
  return `This call was cut off, and a reviewer decided to skip it.${note} ${UNKNOWN}`;
}

function sleep(ms: number): Promise<void> {
  return new Promise((done) => setTimeout(done, ms));
}
