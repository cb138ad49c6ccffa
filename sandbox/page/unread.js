// Unread state: keep in local storage how far each person has read each channel.

const keyOf = (state) => `sandbox.read.${state.team.id}.${state.me.id}`;

function marks(state) {
  try {
    return JSON.parse(localStorage.getItem(keyOf(state))) ?? {};
  } catch {
    return {};
  }
}

/** Mark everything in `channel` as seen by the person. */
export function markRead(state, channel) {
  const last = channel.messages.at(-1)?.ts;
  const all = marks(state);
  if (last === undefined || all[channel.id] === last) return;
  localStorage.setItem(keyOf(state), JSON.stringify({ ...all, [channel.id]: last }));
}

/** The channels with new messages from other people, and the number of mentions. */
export function unreadChannels(state) {
  const all = marks(state);
  const unread = new Map();
  for (const channel of state.channels) {
    const seen = Number.parseFloat(all[channel.id] ?? "0");
    const fresh = channel.messages.filter(
      (message) => message.user !== state.me.id && Number.parseFloat(message.ts) > seen,
    );
    const mentions = fresh.filter((message) => message.mentions_me).length;
    if (fresh.length > 0) unread.set(channel.id, mentions);
  }
  return unread;
}
