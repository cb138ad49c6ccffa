// Client-side routing: keep the person, channel and thread in the URL, for reloads:
// `?user=U0ANA#/C0APPROVALS`, `#/C0APPROVALS/1700000000.000100` (a thread), `#/home`.
// A message's address, `/archives/C0.../p1700000000000100`, opens its thread.

/** Read the address: `{user, home, channel, thread}`. */
export function readPlace() {
  const user = new URLSearchParams(location.search).get("user");
  const [first = "", second = ""] = location.hash.replace(/^#\/?/, "").split("/");
  return {
    user,
    home: first === "home",
    channel: first === "home" || first === "" ? null : decodeURIComponent(first),
    thread: second === "" ? null : tsOf(decodeURIComponent(second)),
  };
}

/** The address of a place. */
export function addressOf({ user, home, channel, thread }) {
  const query = user ? `?user=${encodeURIComponent(user)}` : "";
  if (home) return `/${query}#/home`;
  const parts = [channel, thread].filter(Boolean).map(encodeURIComponent);
  return parts.length === 0 ? `/${query}` : `/${query}#/${parts.join("/")}`;
}

/** This page's address for a link to one of its messages; null for other links. */
export function placeOfLink(url) {
  const target = URL.canParse(url) ? new URL(url) : null;
  const isOurs = target?.origin === location.origin;
  const place = isOurs && target.pathname.match(/^\/archives\/(.+)$/);
  return place ? `${location.search}#${place[1]}` : null;
}

function tsOf(text) {
  return text.replace(/^p(\d+)(\d{6})$/, "$1.$2");
}
