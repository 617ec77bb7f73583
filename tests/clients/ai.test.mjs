// Strata through Vercel's `ai` and its providers for four APIs, as they come from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, embedMany, generateObject, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { createOllama } from 'ollama-ai-provider-v2';
import { eventually, forcing, metric, model, nobodyRuns, person, urls } from './cluster.mjs';

for (const [at, url] of urls.entries()) {
  const chats = createOpenAICompatible({
    name: 'strata',
    baseURL: `${url}/v1`,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const ollama = (more = {}) => createOllama({ baseURL: `${url}/api`, ...more });
  // Of each API: its model, that model where a tool must be called, and what says `one call at a time`,
  // for the demo model would call on and on.
  const apis = {
    chats: { of: chats.chatModel, one: { strata: { parallel_tool_calls: false } } },
    responses: {
      of: createOpenAI({ baseURL: `${url}/v1`, apiKey: 'unused' }),
      one: { openai: { parallelToolCalls: false } },
    },
    messages: {
      of: createAnthropic({ baseURL: `${url}/v1`, apiKey: 'unused' }),
      one: { anthropic: { disableParallelToolUse: true } },
    },
    ollama: {
      of: ollama(),
      forced: ollama({ fetch: forcing }),
      // This provider sends neither where Ollama's API has them, and reads errors in another form.
      settings: (tokens) => ({ ollama: { options: { num_predict: tokens, temperature: 0 } } }),
      words: /^/,
    },
  };

  for (const [api, { of, forced = of, one = {}, settings = () => ({}), words = /gpt-4/ }] of Object.entries(apis)) {
    const name = (what) => `ai over ${api}, node ${at}: ${what}`;
    const asked = (tokens, more = {}) => ({
      model: of(model),
      prompt: 'The old captain',
      maxOutputTokens: tokens,
      temperature: 0,
      maxRetries: 0,
      providerOptions: settings(tokens),
      ...more,
    });

    test(name('writes a text, whole and streamed'), async () => {
      const whole = await generateText(asked(24));
      assert.equal(whole.finishReason, 'length');
      assert.equal(whole.usage.outputTokens, 24);
      assert.ok(whole.usage.inputTokens > 0);
      const streamed = streamText(asked(24));
      let text = '';
      let pieces = 0;
      for await (const piece of streamed.textStream) {
        text += piece;
        ++pieces;
      }
      assert.equal(text, whole.text);
      assert.ok(pieces > 10);
      assert.equal(await streamed.finishReason, 'length');
      assert.equal((await streamed.usage).outputTokens, 24);
    });

    test(name('knows errors for what they are'), async () => {
      await assert.rejects(generateText(asked(24, { model: of('gpt-4') })), (error) => {
        assert.ok(APICallError.isInstance(error), String(error));
        assert.equal(error.statusCode, 404);
        assert.equal(error.isRetryable, false);
        assert.match(error.message, words); // read from the answer's own form
        return true;
      });
    });

    test(name('writes objects as a schema says'), async () => {
      person.parse((await generateObject(asked(300, { schema: person }))).object);
      person.parse((await generateText(asked(300, { output: Output.object({ schema: person }) }))).output);
    });

    test(name('calls tools, whole and streamed, and reads their results'), async () => {
      const saved = [];
      const tools = {
        savePerson: tool({
          description: 'Saves a person.',
          inputSchema: person,
          execute: async (input) => {
            saved.push(input);
            return { saved: true };
          },
        }),
      };
      const call = asked(300, {
        model: forced(model),
        tools,
        toolChoice: 'required',
        stopWhen: stepCountIs(1),
        providerOptions: { ...settings(300), ...one },
      });
      const { toolCalls, finishReason, response } = await generateText(call);
      assert.equal(finishReason, 'tool-calls');
      assert.equal(toolCalls[0].toolName, 'savePerson');
      person.parse(toolCalls[0].input);
      const streamed = streamText(call);
      await streamed.consumeStream();
      person.parse((await streamed.toolCalls)[0].input);
      assert.equal(saved.length, 2);
      const messages = [{ role: 'user', content: 'Save Ann, 9.' }, ...response.messages];
      const after = await generateText(asked(24, { prompt: undefined, messages, tools, toolChoice: 'none' }));
      assert.equal(after.usage.outputTokens, 24);
    });
  }

  const asked = {
    model: chats.chatModel(model),
    prompt: 'The old captain',
    maxOutputTokens: 24,
    temperature: 0.4,
    seed: 7,
    maxRetries: 0,
  };
  const name = (what) => `ai, node ${at}: ${what}`;

  test(name('embeds texts'), async () => {
    for (const of of [chats.embeddingModel(model), ollama().embeddingModel(model)]) {
      const { embeddings } = await embedMany({ model: of, values: ['The sea', 'A ship'], maxRetries: 0 });
      assert.equal(embeddings.length, 2);
      assert.ok(embeddings.every((vector) => Math.abs(Math.hypot(...vector) - 1) < 1e-5));
    }
  });

  test(name('completes a text without a chat'), async () => {
    const whole = await generateText({ ...asked, model: chats.completionModel(model) });
    assert.equal(whole.usage.outputTokens, 24);
    assert.ok(whole.text.length > 24);
  });

  test(name('ends at a stop string'), async () => {
    const { text } = await generateText({ ...asked, maxOutputTokens: 64 });
    const stop = text.slice(20, 27);
    const stopped = await generateText({ ...asked, maxOutputTokens: 1900, stopSequences: [stop] });
    assert.equal(stopped.text, text.slice(0, text.indexOf(stop)));
    assert.equal(stopped.finishReason, 'stop');
  });

  test(name('a stream that is aborted frees its place'), { timeout: 60_000 }, async () => {
    await eventually(nobodyRuns);
    const before = await metric('strata_requests_cancelled_total');
    const abort = new AbortController();
    const { textStream } = streamText({
      ...asked,
      maxOutputTokens: 1900,
      providerOptions: { strata: { ignore_eos: true } },
      abortSignal: abort.signal,
    });
    for await (const piece of textStream) {
      if (piece.length > 0) abort.abort();
    }
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 1);
  });
}
