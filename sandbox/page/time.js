// Show times in the viewer's language and time zone.

const DAY_MS = 86_400_000;

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const full = new Intl.DateTimeFormat(undefined, {
  dateStyle: "full",
  timeStyle: "long",
});

/** The time of a message: `ts` is seconds since 1970 with a fraction, as text. */
export function moment(ts) {
  return new Date(Number.parseFloat(ts) * 1000);
}

export const timeOfDay = (date) => clock.format(date);
export const fullTime = (date) => full.format(date);

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

function daysAgo(date) {
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const then = new Date(date);
  then.setHours(0, 0, 0, 0);
  return Math.round((midnight - then) / DAY_MS);
}

/** "Today", "Yesterday", or a date, for the line between days. */
export function dayName(date) {
  const ago = daysAgo(date);
  if (ago === 0 || ago === 1) return capital(relative.format(-ago, "day"));
  const style = { weekday: "long", day: "numeric", month: "long" };
  if (ago > 300) style.year = "numeric";
  return new Intl.DateTimeFormat(undefined, style).format(date);
}

const capital = (word) => word.charAt(0).toLocaleUpperCase() + word.slice(1);

const FORMS = {
  date_num: { year: "numeric", month: "2-digit", day: "2-digit" },
  date: { year: "numeric", month: "long", day: "numeric" },
  date_short: { year: "numeric", month: "short", day: "numeric" },
  date_long: { weekday: "long", year: "numeric", month: "long", day: "numeric" },
  time: { timeStyle: "short" },
  time_secs: { timeStyle: "medium" },
};

/**
 * Fill a date format such as `{date_short} at {time}`.
 * Tokens: https://docs.slack.dev/messaging/formatting-message-text#date-formatting
 */
export function formatDate(seconds, format, fallback) {
  const date = new Date(Number(seconds) * 1000);
  if (Number.isNaN(date.getTime())) return fallback || String(seconds);
  return format.replace(/\{([a-z_]+)\}/g, (whole, token) => {
    if (token === "ago") return agoText(date);
    const pretty = token.endsWith("_pretty");
    if (pretty && Math.abs(daysAgo(date)) <= 1) {
      return relative.format(-daysAgo(date), "day");
    }
    const form = FORMS[pretty ? token.slice(0, -"_pretty".length) : token];
    return form ? new Intl.DateTimeFormat(undefined, form).format(date) : whole;
  });
}

function agoText(date) {
  const minutes = Math.round((date - Date.now()) / 60_000);
  if (Math.abs(minutes) < 60) return relative.format(minutes, "minute");
  const hours = Math.round(minutes / 60);
  return Math.abs(hours) < 24
    ? relative.format(hours, "hour")
    : relative.format(Math.round(hours / 24), "day");
}
