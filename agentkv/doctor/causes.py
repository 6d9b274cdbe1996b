"""Why a prompt no longer begins with the one before: the classes, and how to mend each."""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    """The classes of findings; the value is what JSON and tests see."""

    CHANGING_FIELD = "changing_field"
    HEAD_REPLACED = "head_replaced"
    HOISTED_NOTES = "hoisted_notes"
    TOOL_ORDER = "tool_order"
    TOOL_SET = "tool_set"
    SERIALISATION = "serialisation"
    DROPPED_THINKING = "dropped_thinking"
    REPLY_REWRITTEN = "reply_rewritten"
    RETOKENISED = "retokenised"
    COMPACTION = "compaction"
    TRIMMED_HISTORY = "trimmed_history"
    EDITED_HISTORY = "edited_history"
    INSERTED_MESSAGE = "inserted_message"
    EPHEMERAL_NOTE = "ephemeral_note"
    CALL_IDS = "call_ids"
    MEDIA = "media"
    CACHE_MARKERS = "cache_markers"
    TEMPLATE_REWRITES = "template_rewrites"
    MODEL = "model"
    CACHE_SALT = "cache_salt"
    TEMPLATE_SETTINGS = "template_settings"
    SKIPS_CACHE = "skips_cache"
    HINTS_LOST = "hints_lost"
    KV_GONE = "kv_gone"


TITLES: dict[Cause, str] = {
    Cause.CHANGING_FIELD: "a field near the head changes from turn to turn",
    Cause.HEAD_REPLACED: "the system prompt was exchanged within the session",
    Cause.HOISTED_NOTES: "notes of the conversation are put into the head",
    Cause.TOOL_ORDER: "the tools come in another order",
    Cause.TOOL_SET: "tools were added or removed",
    Cause.SERIALISATION: "the same JSON is written in another way",
    Cause.DROPPED_THINKING: "thinking is left out of the history",
    Cause.REPLY_REWRITTEN: "the model's own reply comes back changed",
    Cause.RETOKENISED: "the model's own reply comes back as other tokens",
    Cause.COMPACTION: "the history was summarised",
    Cause.TRIMMED_HISTORY: "old messages are dropped from the front",
    Cause.EDITED_HISTORY: "an old message was cut or edited",
    Cause.INSERTED_MESSAGE: "a message was put before older ones",
    Cause.EPHEMERAL_NOTE: "a note in the newest message is gone on the next turn",
    Cause.CALL_IDS: "ids of tool calls change in the history",
    Cause.MEDIA: "an image or file in the history changed",
    Cause.CACHE_MARKERS: "moving cache markers cut a text into other parts",
    Cause.TEMPLATE_REWRITES: "the chat template renders the same messages in another way",
    Cause.MODEL: "another model or adapter answers",
    Cause.CACHE_SALT: "the cache salt changes",
    Cause.TEMPLATE_SETTINGS: "settings that the chat template reads change",
    Cause.SKIPS_CACHE: "the request asks the server not to read its cache",
    Cause.HINTS_LOST: "the session's id or tags are lost on the way",
    Cause.KV_GONE: "the prompt is unchanged, and the server did not have its KV",
}

FIXES: dict[Cause, str] = {
    Cause.CHANGING_FIELD: "Move what changes behind the conversation (into the newest message), or "
    "fix it for the whole session.",
    Cause.HEAD_REPLACED: "Keep one system prompt for a session and say what changes (modes, plans) "
    "in a message at the end.",
    Cause.HOISTED_NOTES: "Leave each note where it arose, as a message of its own after the turn "
    "it belongs to; do not merge it into the system prompt.",
    Cause.TOOL_ORDER: "Sort the tools by name before each request, also after a tool server "
    "reconnects.",
    Cause.TOOL_SET: "Offer the same tools for the whole session; steer with tool_choice or a "
    "message, and answer calls of a tool that is away with an error.",
    Cause.SERIALISATION: "Keep the text that was sent first, or serialise with one fixed order of "
    "keys and one form of whitespace.",
    Cause.DROPPED_THINKING: "Send the thinking back with each assistant message (reasoning, or "
    "thinking blocks), and use a template that keeps it, at least until a task is done.",
    Cause.REPLY_REWRITTEN: "Send the assistant message back as it was received: not stripped, "
    "not parsed and written anew.",
    Cause.RETOKENISED: "Send generated tokens back as ids where the API allows it, or use a "
    "template that renders a reply just as the model writes it.",
    Cause.COMPACTION: "It cannot be had for nothing: compact seldom and much at once, and never on "
    "every turn.",
    Cause.TRIMMED_HISTORY: "Let the history grow, and cut much at once when it must be; a window "
    "that slides by one message loses all of it on each turn.",
    Cause.EDITED_HISTORY: "Shorten a tool's result before it is sent the first time; clear old "
    "ones in large batches, not one by one.",
    Cause.INSERTED_MESSAGE: "Put retrieved text, memory and reminders at the end, where only they "
    "are new.",
    Cause.EPHEMERAL_NOTE: "Leave the note in place on later turns, or send it in a message of its "
    "own at the very end, so that only the note is lost.",
    Cause.CALL_IDS: "Send each tool call back under the id with which it came; do not number them "
    "anew. Some templates print the ids.",
    Cause.MEDIA: "Send the same bytes at the same place each time; encode and scale an image once.",
    Cause.CACHE_MARKERS: "Give every message the same form with and without cache_control: always "
    "one text part, or always a list.",
    Cause.TEMPLATE_REWRITES: "Use a template that only appends (see --chat-template), or keep the "
    "messages in the form that it does not rewrite.",
    Cause.MODEL: "Keep one model and one adapter for a session: KV of one is of no use to another.",
    Cause.CACHE_SALT: "Use one cache_salt for a tenant or a session, not one for a request.",
    Cause.TEMPLATE_SETTINGS: "Keep reasoning effort and chat_template_kwargs the same for a "
    "session: templates print them at the head.",
    Cause.SKIPS_CACHE: "Leave prompt_logprobs out of requests that should be quick: vLLM computes "
    "the whole prompt for it.",
    Cause.HINTS_LOST: "Have the layer between agent and server pass on unknown fields and headers, "
    "or set X-Session-ID in the last layer.",
    Cause.KV_GONE: "Not the log's doing: more DRAM or a tier below it, or a router that sends a "
    "session to one engine (see `agentkv doctor --url`).",
}
