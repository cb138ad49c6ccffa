// Check a form before it is sent, as Slack's client does.

/** Errors by block_id; empty if the form may be sent. */
export function problemsIn(fields) {
  const problems = {};
  for (const { block, element, state } of fields) {
    if (block.type !== "input") continue;
    const { type: _, ...held } = state();
    const problem = problemOf(block, element, Object.values(held)[0]);
    if (problem !== null) problems[block.block_id] = problem;
  }
  return problems;
}

function problemOf(block, element, value) {
  if (value === null || value === undefined || value.length === 0) {
    return block.optional ? null : "Please complete this required field.";
  }
  return CHECKS[element.type]?.(value, element) ?? null;
}

const CHECKS = {
  plain_text_input(value, { min_length: least = 0, max_length: most = 3000 }) {
    if (value.length < least) return `Please enter at least ${least} characters.`;
    return value.length > most ? `Please enter at most ${most} characters.` : null;
  },
  number_input(value, { is_decimal_allowed: decimals, min_value, max_value }) {
    const form = decimals ? /^[+-]?(\d+\.?\d*|\.\d+)$/ : /^[+-]?\d+$/;
    if (!form.test(value)) {
      return decimals ? "Please enter a number." : "Please enter a whole number.";
    }
    const number = Number(value);
    if (min_value !== undefined && number < Number(min_value)) {
      return `Please enter a number of ${min_value} or more.`;
    }
    if (max_value !== undefined && number > Number(max_value)) {
      return `Please enter a number of ${max_value} or less.`;
    }
    return null;
  },
  email_text_input: (value) =>
    /^[^@\s]+@[^@\s]+\.[^@\s]+$/.test(value) ? null : "Please enter an email address.",
  url_text_input: (value) =>
    /^https?:\/\/\S+$/i.test(value) ? null : "Please enter a web address.",
};
