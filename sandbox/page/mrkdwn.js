// Parse Slack's mrkdwn into a small tree, by Slack's word-boundary rules.
//
// A mark opens only without a word character before it and without a space after it. It
// closes only without a space before it and without a word character after it, on the same
// line, so snake_case and 2*3*4 are unchanged. Angle brackets are control sequences
// everywhere, even inside code: only escaping disarms them, and this page must show an
// injection rather than hide it.
// https://docs.slack.dev/messaging/formatting-message-text

const MARKS = { "*": "bold", _: "italic", "~": "strike" };
const WORD = /[\p{L}\p{N}_]/u;
const SPACE = /\s/u;
const FENCE = /```\n?([\s\S]+?)\n?```/g;
const ANGLE = /<([^<>\n]+)>/y;
const CODE = /`([^`\n]+)`/y;
const EMOJI = /:([a-z0-9_+'-]+):/iy;
const URL = /https?:\/\/[^\s<>|"]+[^\s<>|".,;:!?)\]}*_~`]/iy;

/** Parse a whole text into blocks: `lines`, `quote` and `fence`, each with `nodes`. */
export function parseMrkdwn(text, options = {}) {
  const blocks = [];
  let at = 0;
  for (const match of text.matchAll(FENCE)) {
    blocks.push(...parseLines(text.slice(at, match.index), options));
    blocks.push({ kind: "fence", nodes: parseCode(match[1]) });
    at = match.index + match[0].length;
    if (text[at] === "\n") at += 1;
  }
  blocks.push(...parseLines(text.slice(at), options));
  return blocks;
}

const QUOTE = /^(?:>|&gt;) ?/;
const REST_QUOTED = /^(?:>|&gt;){3} ?/;

function parseLines(text, options) {
  if (text === "") return [];
  const groups = [];
  let quoteRest = false;
  for (let line of text.replace(/\n$/, "").split("\n")) {
    let quoted = quoteRest;
    if (!quoteRest && REST_QUOTED.test(line)) {
      quoteRest = quoted = true;
      line = line.replace(REST_QUOTED, "");
    } else if (!quoteRest && QUOTE.test(line)) {
      quoted = true;
      line = line.replace(QUOTE, "");
    }
    const kind = quoted ? "quote" : "lines";
    const last = groups[groups.length - 1];
    if (last?.kind === kind) last.lines.push(line);
    else groups.push({ kind, lines: [line] });
  }
  return groups.map(({ kind, lines }) => ({
    kind,
    nodes: parseInline(lines.join("\n"), options),
  }));
}

/**
 * Parse marks, code, links, mentions and emoji. Nodes: `text`, `bold`, `italic`, `strike`,
 * `code` (with `nodes`), `angle` (with `body`), `emoji` (with `name`), `url`.
 */
export function parseInline(text, options = {}) {
  return scan(text, (at) => atomAt(text, at, options) ?? markAt(text, at, options));
}

function parseCode(text) {
  return scan(text, (at) => angleAt(text, at));
}

function scan(text, hitAt) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain !== "") nodes.push({ kind: "text", text: unescape(plain) });
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const hit = hitAt(at);
    if (hit === null) {
      plain += text[at];
      at += 1;
    } else {
      flush();
      nodes.push(hit.node);
      at = hit.end;
    }
  }
  flush();
  return nodes;
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function angleAt(text, at) {
  const match = text[at] === "<" ? matchAt(ANGLE, text, at) : null;
  return match && { node: { kind: "angle", body: match[1] }, end: ANGLE.lastIndex };
}

function atomAt(text, at, { verbatim = false }) {
  const char = text[at];
  if (char === "<") return angleAt(text, at);
  if (char === "`" && opens(text, at)) {
    const match = matchAt(CODE, text, at);
    if (match && !isWord(text, CODE.lastIndex)) {
      return { node: { kind: "code", nodes: parseCode(match[1]) }, end: CODE.lastIndex };
    }
  }
  if (char === ":") {
    const match = matchAt(EMOJI, text, at);
    return match && { node: { kind: "emoji", name: match[1] }, end: EMOJI.lastIndex };
  }
  if (char === "h" && !verbatim && !isWord(text, at - 1)) {
    const match = matchAt(URL, text, at);
    return match && { node: { kind: "url", url: unescape(match[0]) }, end: URL.lastIndex };
  }
  return null;
}

function markAt(text, at, options) {
  const mark = text[at];
  if (!Object.hasOwn(MARKS, mark) || !opens(text, at)) return null;
  const close = closing(text, at, options);
  if (close === -1) return null;
  const nodes = parseInline(text.slice(at + 1, close), options);
  return { node: { kind: MARKS[mark], nodes }, end: close + 1 };
}

function opens(text, at) {
  const next = text[at + 1];
  return (
    !isWord(text, at - 1) &&
    text[at - 1] !== text[at] &&
    next !== undefined &&
    next !== text[at] &&
    !SPACE.test(next)
  );
}

function closing(text, start, options) {
  const mark = text[start];
  let at = start + 1;
  while (at < text.length && text[at] !== "\n") {
    const atom = atomAt(text, at, options);
    if (atom !== null) {
      at = atom.end;
      continue;
    }
    const ends = text[at] === mark && !SPACE.test(text[at - 1]) && text[at + 1] !== mark;
    if (ends && at > start + 1 && !isWord(text, at + 1)) return at;
    at += 1;
  }
  return -1;
}

function isWord(text, at) {
  const code = at < 0 ? undefined : text.codePointAt(at);
  if (code === undefined) return false;
  const low = code >= 0xdc00 && code <= 0xdfff; // second half of a pair: look at the whole
  return WORD.test(String.fromCodePoint(low ? text.codePointAt(at - 1) : code));
}

/** Undo the three escapes of Slack, once. */
export function unescape(text) {
  const plain = { lt: "<", gt: ">", amp: "&" };
  return text.replace(/&(lt|gt|amp);/g, (_, name) => plain[name]);
}
