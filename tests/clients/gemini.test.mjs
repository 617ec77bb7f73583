// Strata through the client library `@google/genai`, as it comes from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FunctionCallingConfigMode, GoogleGenAI, Type } from '@google/genai';
import { z } from 'zod';
import { eventually, model, nobodyRuns, person, urls } from './cluster.mjs';

const ask = (config = {}) => ({
  model,
  contents: 'The old captain',
  config: { maxOutputTokens: 24, temperature: 0, ...config },
});

for (const [at, url] of urls.entries()) {
  const client = new GoogleGenAI({ apiKey: 'unused', httpOptions: { baseUrl: url } });
  const name = (what) => `gemini, node ${at}: ${what}`;

  test(name('lists its models'), async () => {
    const models = [];
    for await (const each of await client.models.list()) models.push(each);
    assert.deepEqual(models.map((each) => each.displayName), [model]);
    assert.equal((await client.models.get({ model })).displayName, model);
  });

  test(name('answers, whole and streamed, and counts the same tokens'), async () => {
    const whole = await client.models.generateContent(ask());
    assert.equal(whole.candidates[0].finishReason, 'MAX_TOKENS');
    assert.equal(whole.usageMetadata.candidatesTokenCount, 24);
    let text = '';
    let last;
    for await (const piece of await client.models.generateContentStream(ask())) {
      text += piece.text ?? '';
      last = piece;
    }
    assert.equal(text, whole.text);
    assert.equal(last.candidates[0].finishReason, 'MAX_TOKENS');
    assert.equal(last.usageMetadata.totalTokenCount, whole.usageMetadata.totalTokenCount);
    const { totalTokens } = await client.models.countTokens({ model, contents: 'The old captain' });
    assert.equal(totalTokens, whole.usageMetadata.promptTokenCount);
  });

  test(name('answers as a schema says, in its own form and as JSON Schema'), async () => {
    const own = {
      type: Type.OBJECT,
      properties: { name: { type: Type.STRING, maxLength: '20' }, age: { type: Type.INTEGER, minimum: 0, maximum: 99 } },
      required: ['name', 'age'],
    };
    for (const schema of [{ responseSchema: own }, { responseJsonSchema: z.toJSONSchema(person) }]) {
      const config = { responseMimeType: 'application/json', maxOutputTokens: 400, ...schema };
      const answer = await client.models.generateContent(ask(config));
      assert.ok(person.safeParse(JSON.parse(answer.text)).success, answer.text);
    }
  });

  test(name('calls a function, and goes on from its result'), async () => {
    const declaration = {
      name: 'save_person',
      description: 'Saves a person.',
      parametersJsonSchema: z.toJSONSchema(person),
    };
    const forced = {
      tools: [{ functionDeclarations: [declaration] }],
      toolConfig: { functionCallingConfig: { mode: FunctionCallingConfigMode.ANY } },
      maxOutputTokens: 400,
    };
    const first = await client.models.generateContent(ask(forced));
    const [call] = first.functionCalls;
    assert.equal(call.name, 'save_person');
    assert.ok(person.safeParse(call.args).success, JSON.stringify(call.args));
    const pieces = [];
    for await (const piece of await client.models.generateContentStream(ask(forced))) {
      pieces.push(...(piece.functionCalls ?? []));
    }
    assert.ok(pieces.length > 0);
    for (const each of pieces) {
      assert.equal(each.name, 'save_person');
      assert.ok(person.safeParse(each.args).success, JSON.stringify(each.args));
    }
    const contents = [
      { role: 'user', parts: [{ text: 'The old captain' }] },
      first.candidates[0].content,
      { role: 'user', parts: [{ functionResponse: { id: call.id, name: call.name, response: { saved: true } } }] },
    ];
    const next = await client.models.generateContent({ ...ask(), contents });
    assert.ok(next.usageMetadata.promptTokenCount > first.usageMetadata.promptTokenCount);
  });

  test(name('embeds several texts'), async () => {
    const { embeddings } = await client.models.embedContent({ model, contents: ['The old captain', 'A ship'] });
    assert.equal(embeddings.length, 2);
    const length = embeddings[0].values.reduce((sum, x) => sum + x * x, 0);
    assert.ok(Math.abs(length - 1) < 1e-3, `${length}`);
  });

  test(name('errors have its form'), async () => {
    await assert.rejects(client.models.generateContent({ ...ask(), model: 'nothing' }), (error) => {
      assert.equal(error.status, 404);
      assert.match(error.message, /NOT_FOUND/);
      return true;
    });
    await assert.rejects(
      client.models.generateContent(ask({ tools: [{ googleSearch: {} }] })),
      (error) => error.status === 400 && /googleSearch/.test(error.message),
    );
  });

  test(name('a client that goes ends its request'), async () => {
    const abort = new AbortController();
    const stream = await client.models.generateContentStream(
      ask({ maxOutputTokens: 1900, abortSignal: abort.signal }),
    );
    await assert.rejects(async () => {
      for await (const _ of stream) abort.abort();
    });
    await eventually(nobodyRuns);
  });
}
