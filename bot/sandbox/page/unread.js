// Remember, in this browser, how far each person has read each channel.

const keyOf = (state) => `sandbox.read.${state.team.id}.${state.me.id}`;

function marks(state) {
  try {
    return JSON.parse(localStorage.getItem(keyOf(state))) ?? {};
  } catch {
    return {};
  }
}

/** Say that the person has seen everything in `channel`. */
export function markRead(state, channel) {
  const last = channel.messages.at(-1)?.ts;
  const all = marks(state);
  if (last === undefined || all[channel.id] === last) return;
  localStorage.setItem(keyOf(state), JSON.stringify({ ...all, [channel.id]: last }));
}

/** Ids of the channels with something new from somebody else. */
export function unreadChannels(state) {
  const all = marks(state);
  const unread = state.channels.filter((channel) => {
    const seen = Number.parseFloat(all[channel.id] ?? "0");
    return channel.messages.some(
      (message) =>
        message.user !== state.me.id && Number.parseFloat(message.ts) > seen,
    );
  });
  return new Set(unread.map((channel) => channel.id));
}
