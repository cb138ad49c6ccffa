// The emoji that an approval bot uses, by name; an unknown name stays text.

const NAMES = {
  "+1": "👍", "-1": "👎", alarm_clock: "⏰", arrow_right: "➡️", ballot_box_with_check: "☑️",
  bar_chart: "📊", bell: "🔔", black_circle: "⚫", blue_heart: "💙", bulb: "💡",
  busts_in_silhouette: "👥", calendar: "📅", clipboard: "📋", clock1: "🕐", construction: "🚧",
  email: "📧", exclamation: "❗", eyes: "👀", fire: "🔥", grey_question: "❔", hand: "✋",
  hourglass: "⌛", hourglass_flowing_sand: "⏳", information_source: "ℹ️", key: "🔑",
  large_blue_circle: "🔵", large_green_circle: "🟢", large_orange_circle: "🟠",
  large_red_circle: "🔴", large_yellow_circle: "🟡", link: "🔗", lock: "🔒", mag: "🔍",
  memo: "📝", moneybag: "💰", no_entry: "⛔", no_entry_sign: "🚫", octagonal_sign: "🛑",
  old_key: "🗝️", pencil: "📝", pencil2: "✏️", point_right: "👉", question: "❓",
  raised_hand: "✋", receipt: "🧾", red_circle: "🔴", repeat: "🔁", robot_face: "🤖",
  rotating_light: "🚨", scales: "⚖️", shield: "🛡️", smile: "😄", snowflake: "❄️",
  speech_balloon: "💬", stopwatch: "⏱️", tada: "🎉", thumbsdown: "👎", thumbsup: "👍",
  unlock: "🔓", warning: "⚠️", wave: "👋", white_check_mark: "✅", wrench: "🔧", x: "❌",
  zap: "⚡", heavy_check_mark: "✔️", heart: "❤️", rocket: "🚀", package: "📦",
};

const NAME = /:([a-z0-9_+'-]+):/gi;

/** The picture for a name, or null if it is unknown. */
export function emoji(name) {
  return Object.hasOwn(NAMES, name) ? NAMES[name] : null;
}

/** Replace every known `:name:` in a text. */
export function withEmoji(text) {
  return text.replace(NAME, (whole, name) => emoji(name) ?? whole);
}
