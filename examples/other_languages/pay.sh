#!/bin/sh
# Submit one call, wait for its decision, claim it, run it, report its result.
#
#   KEYTURN_GATEWAY=https://gateway.example.com KEYTURN_API_KEY=tk_… \
#     ./pay.sh invoice-42 '{"to": "ada", "amount": 90}'
#
# It needs curl and jq. After a crash, run it again with the same invoice: the call is
# identified by its names, so there is no second request and no second run.
set -eu

thread=$1 args=$2
agent=${AGENT:-billing} tool=wire_money call=c1
# Names this attempt: a claim whose answer was lost can be repeated.
owner=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
ref=$(jq -nc --arg a "$agent" --arg t "$thread" '{agent: $a, thread: $t, message_id: "m1"}')
run=$(jq -nc --argjson r "$ref" '$r | {agent, thread}')

ask() { # endpoint, body: prints the answer; retries while the gateway is unreachable
  curl --silent --show-error --fail-with-body --retry 8 --retry-all-errors \
    --header "Authorization: Bearer $KEYTURN_API_KEY" \
    --json "$2" "$KEYTURN_GATEWAY/v1/$1"
}

wire_money() { # arguments, and the key (sha256:…) with which a bank detects duplicates
  echo "sent $(echo "$1" | jq -r '"\(.amount) to \(.to)"') under $(echo "$2" | cut -c 8-15)"
}

# 1. Submit.
verdict=$(ask submit "$(jq -nc --argjson ref "$ref" --argjson args "$args" \
  --arg tool "$tool" --arg call "$call" \
  '{ref: $ref, calls: [{tool: $tool, args: $args, tool_call_id: $call}]}')" | jq -c '.[0]')
case $(echo "$verdict" | jq -r .kind) in
  deny) echo "denied: $(echo "$verdict" | jq -r .reason)"; exit 1 ;;
esac
item=$(echo "$verdict" | jq -r .item_id)

# 2. Wait: each request waits for 25 seconds.
questions=$(echo "$verdict" | jq -c '[{kind: "keyturn.approval", item_id, action_hash}]')
while :; do
  answer=$(ask answers "$(jq -nc --argjson run "$run" --argjson questions "$questions" \
    '{run: $run, questions: $questions, wait_s: 25}')" | jq -c '.[0].answer // empty')
  [ -z "$answer" ] || break
done
case $(echo "$answer" | jq -r .type) in
  approve | edit) ;;
  *) echo "not approved: $(echo "$answer" | jq -r '.message // .type')"; exit 1 ;;
esac

# 3. Claim: the answer has the authorized arguments, including edits.
claim() {
  ask claim "$(jq -nc --argjson ref "$ref" --arg item "$item" --arg tool "$tool" \
    --arg call "$call" --arg owner "$owner" \
    '{item_id: $item, ref: $ref, tool: $tool, tool_call_id: $call, owner: $owner}')"
}
claim=$(claim)
while [ "$(echo "$claim" | jq -r .kind)" = busy ]; do # another attempt runs it now
  sleep "$(echo "$claim" | jq -r .retry_after_s)"
  claim=$(claim)
done
case $(echo "$claim" | jq -r .kind) in
  new) ;;
  done) echo "$claim" | jq -r .result.summary; exit ;; # an earlier attempt ran it
  *) echo "not run: $(echo "$claim" | jq -r '.reason // .kind')"; exit 1 ;;
esac

# 4. Run it, once. A slow tool sends `heartbeat` every third of lease_s.
said=$(wire_money "$(echo "$claim" | jq -c '.action | fromjson | .args')" \
  "$(echo "$claim" | jq -r .idempotency_key)")

# 5. Finish.
ask finish "$(jq -nc --arg item "$item" --arg said "$said" \
  --argjson fence "$(echo "$claim" | jq .fence)" \
  '{item_id: $item, fence: $fence, result: {ok: true, summary: $said}}')" > /dev/null
echo "$said"
