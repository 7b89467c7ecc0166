"""The three wire formats that agents speak with a model: what a request has, and how an answer is
streamed. A turn is a text, or a call as `model.call` makes it."""

import json


def text_of(content):
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [])


def sse(data, event=None):
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


class Chat:
    """OpenAI's chat completions, which opencode uses for servers that are compatible."""

    path = "/v1/chat/completions"

    @staticmethod
    def tools(request):
        return [tool["function"]["name"] for tool in request.get("tools") or []]

    @staticmethod
    def results(request):
        return [text_of(message["content"]) for message in request["messages"] if message["role"] == "tool"]

    @staticmethod
    def system(request):
        return "\n".join(text_of(message["content"]) for message in request["messages"] if message["role"] == "system")

    @staticmethod
    def stream(turn, number):
        def chunk(delta, finish=None):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            head = {"id": "scripted", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
            return {**head, "choices": [choice]}

        yield sse(chunk({"role": "assistant", "content": ""}))
        if isinstance(turn, str):
            yield sse(chunk({"content": turn}))
            yield sse(chunk({}, "stop"))
        else:
            # The arguments come in pieces, as from real models.
            text = json.dumps(turn["arguments"])
            function = {"name": turn["tool"], "arguments": text[:5]}
            first = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
            yield sse(chunk({"tool_calls": [first]}))
            yield sse(chunk({"tool_calls": [{"index": 0, "function": {"arguments": text[5:]}}]}))
            yield sse(chunk({}, "tool_calls"))
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        yield sse({**chunk({}), "choices": [], "usage": usage})
        yield sse("[DONE]")


class Messages:
    """Anthropic's messages, for Claude Code."""

    path = "/v1/messages"

    @staticmethod
    def tools(request):
        return [tool["name"] for tool in request.get("tools") or []]

    @staticmethod
    def results(request):
        messages = [message["content"] for message in request["messages"] if isinstance(message["content"], list)]
        parts = [part for content in messages for part in content]
        return [text_of(part["content"]) for part in parts if part["type"] == "tool_result"]

    @staticmethod
    def system(request):
        said = [message for message in request["messages"] if message["role"] != "assistant"]
        return "\n".join([text_of(request.get("system")), *(text_of(message["content"]) for message in said)])

    @staticmethod
    def stream(turn, number):
        def event(kind, **data):
            return sse({"type": kind, **data}, kind)

        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted"}
        rest = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield event("message_start", message={**message, **rest})
        if isinstance(turn, str):
            block, delta, stop = {"type": "text", "text": ""}, {"type": "text_delta", "text": turn}, "end_turn"
        else:
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": turn["tool"], "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(turn["arguments"])}
            stop = "tool_use"
        yield event("content_block_start", index=0, content_block=block)
        yield event("content_block_delta", index=0, delta=delta)
        yield event("content_block_stop", index=0)
        yield event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
        yield event("message_stop")


class Responses:
    """OpenAI's responses, for Codex. Tools of a server are in a namespace of their own."""

    path = "/v1/responses"

    @staticmethod
    def tools(request):
        names = []
        for tool in request.get("tools") or []:
            if tool["type"] == "namespace":
                names += [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]
            else:
                names.append(tool.get("name", tool["type"]))
        return names

    @staticmethod
    def results(request):
        return [text_of(item["output"]) for item in request["input"] if item["type"] == "function_call_output"]

    @staticmethod
    def system(request):
        messages = [item for item in request["input"] if item["type"] == "message"]
        return "\n".join([request.get("instructions") or "", *(text_of(item["content"]) for item in messages)])

    @staticmethod
    def stream(turn, number):
        def event(kind, **data):
            return sse({"type": kind, **data}, kind)

        yield event("response.created", response={"id": f"resp_{number}"})
        if isinstance(turn, str):
            content = [{"type": "output_text", "text": turn}]
            item = {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content}
        else:
            namespace, _, name = turn["tool"].rpartition("__")
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
            item |= {"namespace": namespace, "arguments": json.dumps(turn["arguments"])}
        yield event("response.output_item.done", item=item)
        usage = {"input_tokens": 1, "input_tokens_details": None, "output_tokens": 1}
        usage |= {"output_tokens_details": None, "total_tokens": 2}
        yield event("response.completed", response={"id": f"resp_{number}", "usage": usage})


ALL = (Chat, Messages, Responses)
