// Client of the sandbox server: read the state, act as a person, follow changes.

/** Fetch the state that `user` can see; without a user the server chooses one. */
export async function loadState(user) {
  const query = user ? `?user=${encodeURIComponent(user)}` : "";
  const response = await fetch(`/sandbox/state${query}`, { cache: "no-store" });
  if (response.status === 400) {
    throw new Error(
      `There is no person ${user ?? "in the address"}: add ?user= and an id, such as U0ANA.`,
    );
  }
  if (!response.ok) throw new Error(`The sandbox answered with ${response.status}.`);
  return response.json();
}

/** Send one action of a person. Never throws: errors are returned as `ok: false`. */
export async function sendAct(body) {
  try {
    const response = await fetch("/sandbox/act", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    return await response.json();
  } catch (error) {
    console.warn("act failed", error);
    return { ok: false, error: "sandbox_unreachable" };
  }
}

/**
 * Listen for changes. `onSeq` gets each sequence number, `onOnline` true or false as
 * the stream opens and breaks. Returns a function that stops listening.
 */
export function listen(user, onSeq, onOnline) {
  const source = new EventSource(`/sandbox/events?user=${encodeURIComponent(user)}`);
  source.addEventListener("open", () => onOnline(true));
  source.addEventListener("error", () => onOnline(false));
  source.addEventListener("message", (event) => onSeq(JSON.parse(event.data).seq));
  return () => source.close();
}

const SILENT = {
  timeout:
    "The app did not answer within three seconds. It may still have worked: look before trying again.",
  not_connected: "The app is not connected, so nothing reached it.",
  connection_failed: "The app cannot be reached, so nothing reached it.",
};

const REFUSED = {
  sandbox_unreachable: "The sandbox server cannot be reached. Is it still running?",
  view_not_found: "This window was closed or replaced. Open it again.",
  message_not_found: "This message is gone.",
  action_not_found: "This message has changed in the meantime. Look again.",
  account_inactive: "This account is deactivated and cannot act.",
  not_in_channel: "You are not in this channel.",
};

/** One sentence for an answer that is not ok. */
export function explain({ error, reason }) {
  if (error === "app_did_not_respond") {
    return SILENT[reason] ?? `The app answered with an error (${reason ?? "no reason given"}).`;
  }
  return REFUSED[error] ?? `This did not work: ${error}.`;
}
